"""What it costs: stages, machines, measured layers. Nothing here loads torch; `profiles.profiler` and models do."""

from profiles.cluster import Cluster, Device, Link, flat
from profiles.errors import ProfileError
from profiles.files import load_cluster, load_profile, save_cluster, save_profile
from profiles.partition import balanced_partition, uniform_partition
from profiles.profile import LayerCost, LayerMeasurement, Profile, Provenance, stage_costs
from profiles.stage_costs import StageCost, StageCosts, uniform
from profiles.stage_costs_csv import load_stage_costs

__all__ = [
    "Cluster",
    "Device",
    "LayerCost",
    "LayerMeasurement",
    "Link",
    "Profile",
    "ProfileError",
    "Provenance",
    "StageCost",
    "StageCosts",
    "balanced_partition",
    "flat",
    "load_cluster",
    "load_profile",
    "load_stage_costs",
    "save_cluster",
    "save_profile",
    "stage_costs",
    "uniform",
    "uniform_partition",
]
