"""The Vega libraries that draw the charts, in the version altair writes for."""

from __future__ import annotations

import re
from functools import lru_cache

import altair as alt
import vl_convert

_GLOBALS = "Object.assign(window, { vega, vegaLite, vegaEmbed });"


def vega_lite_version() -> str:
    """Return the Vega-Lite version of altair's schema, as vl-convert names it: `6.4`."""
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


@lru_cache(maxsize=1)
def javascript() -> str:
    """Return a script for a script element that defines vega, vegaLite and vegaEmbed."""
    script = vl_convert.javascript_bundle(_GLOBALS, vega_lite_version())
    return re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE)
