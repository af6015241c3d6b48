"""Floor 1: grammars that answers must follow, on llguidance. No torch.

A Compiler makes a Grammar into a Compiled one, once; each request follows it with a Matcher of
its own; a MaskFiller says for many at a time which tokens may come next.
"""

from radixlm.structured_output.compiler import Compiled, Compiler
from radixlm.structured_output.matcher import MaskFiller, Matcher, Weight

__all__ = ["Compiled", "Compiler", "MaskFiller", "Matcher", "Weight"]
