"""Tables for pandas, which is imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from protofed.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(rows: Iterable[Mapping[str, Any]], columns: list[str]) -> DataFrame:
    """A data frame of rows that have these columns.

    Raises:
        UserError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError:
        raise UserError("frame", "pandas", "it is not installed: pip install 'protofed[frames]'") from None
    return DataFrame(list(rows), columns=columns)
