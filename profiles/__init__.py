"""What it costs: stages, machines, measured layers. Nothing here loads torch; `profiles.profiler` and models do."""

from pipesched.profiles.all_reduce import AllReduce, all_reduce
from pipesched.profiles.cluster import Cluster, Device, Link, flat, of_nodes
from pipesched.profiles.compression import Compression
from pipesched.profiles.errors import ProfileError
from pipesched.profiles.files import load_cluster, load_plan, load_profile, save_cluster, save_plan, save_profile
from pipesched.profiles.machines import load_machine, machine_names
from pipesched.profiles.partition import balanced_partition, cheapest_partition, uniform_partition
from pipesched.profiles.plan import Plan, Predicted
from pipesched.profiles.profile import LayerCost, LayerMeasurement, Profile, Provenance, stage_costs
from pipesched.profiles.replication import ChainLayer, Level, ReplicatedStage, replicated_partition
from pipesched.profiles.stage_costs import StageCost, StageCosts, uniform
from pipesched.profiles.stage_costs_csv import load_stage_costs
from pipesched.profiles.staging import StagedLayers, Staging, by_memory, by_replicas, by_time

__all__ = [
    "AllReduce",
    "ChainLayer",
    "Cluster",
    "Compression",
    "Device",
    "LayerCost",
    "LayerMeasurement",
    "Level",
    "Link",
    "Plan",
    "Predicted",
    "Profile",
    "ProfileError",
    "Provenance",
    "ReplicatedStage",
    "StageCost",
    "StageCosts",
    "StagedLayers",
    "Staging",
    "all_reduce",
    "balanced_partition",
    "by_memory",
    "by_replicas",
    "by_time",
    "cheapest_partition",
    "flat",
    "load_cluster",
    "load_machine",
    "load_plan",
    "load_profile",
    "load_stage_costs",
    "machine_names",
    "of_nodes",
    "replicated_partition",
    "save_cluster",
    "save_plan",
    "save_profile",
    "stage_costs",
    "uniform",
    "uniform_partition",
]
