"""Map a store at once, then re-embed the rows that the map is least sure of until the target quality is reached."""

from congruence.upgrade.progressive.forecast import Forecast
from congruence.upgrade.progressive.meter import Reading, fit_origin_scale
from congruence.upgrade.progressive.order import ORDERS, Order, View, by_queries
from congruence.upgrade.progressive.progressive import Progressive, Update

__all__ = ["ORDERS", "Forecast", "Order", "Progressive", "Reading", "Update", "View", "by_queries", "fit_origin_scale"]
