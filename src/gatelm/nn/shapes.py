"""Shape letters of the whole package, and the array types that carry them.

B batch, T query time, S key time, D model width, N query heads, K key/value heads, H head width,
F feed-forward width, V vocabulary.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Tensor"]
