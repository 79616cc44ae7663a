"""The settings of a sweep as a table of which no row is made before it is read.

    orders           sizes      links                      setting number
    1f1b p=4 m=8     1          bandwidth 1e9              0
                                bandwidth 1e10             1
                     2          bandwidth 1e9              2
                     ..

Numbers go up with the link first, then the size, then the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple, final, overload

from pipesched.simulator.sweep.swept_setting import SETTING_COLUMNS, SweptSetting

_MOST_TOGETHER = 1_024
"""Settings of a block."""


class SettingBlock(NamedTuple):
    """Settings of the same lists and the same size of micro-batches: a row of links.

    Attributes:
        order: Says the lists; without size and links.
        size: Samples of a micro-batch; None where nothing is known of samples.
        links: Of what is varied of links the value in each setting, by the names of a `Link`.
        numbers: The number of each setting.
    """

    order: SweptSetting
    size: int | None
    links: Mapping[str, Sequence[float]]
    numbers: Sequence[int]

    def settings(self) -> Iterator[SweptSetting]:
        """Yield the settings."""
        for index in range(len(self.numbers)):
            link = tuple((name, values[index]) for name, values in self.links.items())
            yield replace(self.order, microbatch_size=self.size, link=link)

    def at(self, places: Sequence[int]) -> SettingBlock:
        """Return some settings of the block."""
        links = {name: [values[place] for place in places] for name, values in self.links.items()}
        return self._replace(links=links, numbers=[self.numbers[place] for place in places])

    @property
    def length(self) -> int:
        """Stages times micro-batches, or so, of the lists."""
        return self.order.num_ranks * self.order.num_microbatches * (self.order.num_chunks or 1)


@final
class SettingTable(Sequence[SweptSetting]):
    """Every combination of lists, sizes and links, or some of them, in that order.

    Args:
        orders: The lists, each once.
        sizes: Samples of a micro-batch, each once.
        link_values: Values of what links have, each once, by the names of a `Link`.
        kept: Numbers of the combinations that count, rising; None: all do.
    """

    def __init__(
        self, orders: Sequence[SweptSetting], sizes: Sequence[int | None], link_values: Mapping[str, Sequence[float]],
        kept: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.orders = tuple(orders)
        self.sizes = tuple(sizes)
        self.link_values = {name: tuple(values) for name, values in link_values.items()}
        self._links = [*product(*self.link_values.values())]
        self._kept = kept

    @property
    def links(self) -> list[tuple[tuple[str, float], ...]]:
        """What links have in each combination of it, by the names of a `Link`."""
        return [tuple(zip(self.link_values, link, strict=True)) for link in self._links]

    def __len__(self) -> int:
        return len(self.orders) * len(self.sizes) * len(self._links) if self._kept is None else len(self._kept)

    @overload
    def __getitem__(self, index: int) -> SweptSetting: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SweptSetting, ...]: ...

    def __getitem__(self, index: int | slice) -> SweptSetting | tuple[SweptSetting, ...]:
        if isinstance(index, slice):
            return tuple(map(self._setting, range(len(self))[index]))
        return self._setting(range(len(self))[index])

    def _setting(self, number: int) -> SweptSetting:
        order, size, link = self.places(number)
        linked = tuple(zip(self.link_values, self._links[link], strict=True))
        lists: SweptSetting = self.orders[order]
        return replace(lists, microbatch_size=self.sizes[size], link=linked)

    def places(self, numbers: Any) -> tuple[Any, Any, Any]:
        """Return the indices of order, size and link of a setting, or of an array of them."""
        if self._kept is not None:
            if isinstance(numbers, int):
                numbers = self._kept[numbers]
            else:
                import numpy as np

                numbers = np.asarray(self._kept)[numbers]
        num_sizes, num_links = len(self.sizes), len(self._links)
        return numbers // (num_sizes * num_links), numbers // num_links % num_sizes, numbers % num_links

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what the settings have."""
        return (*SETTING_COLUMNS, *self.parameters, *self.link_values)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that some setting has."""
        return tuple(dict.fromkeys(name for order in self.orders for name, _ in order.parameters))

    def column(self, name: str, numbers: Any) -> Any:
        """Return what settings have of one column, as an array.

        Args:
            name: One of `columns`.
            numbers: An array of their numbers.
        """
        import numpy as np

        orders, sizes, links = self.places(numbers)
        if name in self.link_values:
            position = [*self.link_values].index(name)
            return np.array([link[position] for link in self._links])[links]
        if name == "microbatch_size":
            return _array(self.sizes)[sizes]
        if name in SETTING_COLUMNS:
            return _array([getattr(order, name) for order in self.orders])[orders]
        return _array([dict(order.parameters).get(name) for order in self.orders])[orders]

    def blocks(self, without: Collection[int] = ()) -> list[SettingBlock]:
        """Return the settings in blocks, the shortest lists first.

        Args:
            without: Numbers of settings that are left out.
        """
        by_order: dict[int, dict[int, list[int]]] = {}
        blocks: list[SettingBlock] = []
        columns = {name: [link[i] for link in self._links] for i, name in enumerate(self.link_values)}
        if self._kept is None and not without:
            num_sizes, num_links = len(self.sizes), len(self._links)
            for order, size in product(range(len(self.orders)), range(num_sizes)):
                first = (order * num_sizes + size) * num_links
                for start in range(0, num_links, _MOST_TOGETHER):
                    end = min(start + _MOST_TOGETHER, num_links)
                    links = {name: values[start:end] for name, values in columns.items()}
                    numbers = range(first + start, first + end)
                    blocks.append(SettingBlock(self.orders[order], self.sizes[size], links, numbers))
        else:
            for number in range(len(self)):
                if number not in without:
                    order, size, _ = self.places(number)
                    by_order.setdefault(order, {}).setdefault(size, []).append(number)
            for order, by_size in by_order.items():
                for size, numbers_of in by_size.items():
                    for start in range(0, len(numbers_of), _MOST_TOGETHER):
                        some = numbers_of[start : start + _MOST_TOGETHER]
                        rows = [self.places(number)[2] for number in some]
                        links = {name: [values[row] for row in rows] for name, values in columns.items()}
                        blocks.append(SettingBlock(self.orders[order], self.sizes[size], links, some))
        return sorted(blocks, key=attrgetter("length"))


def _array(values: Sequence[Any]) -> Any:
    """Return values as an array: of numbers if all are, else of what they are."""
    import numpy as np

    if all(type(value) in (int, float) for value in values) or all(type(value) is bool for value in values):
        return np.array(values)
    result = np.empty(len(values), object)
    result[:] = values
    return result
