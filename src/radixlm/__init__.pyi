"""The public names, and where each is from: read by `__init__.py`, a name a line, and by type
checkers.
"""

from radixlm.assembly import AsyncEngine as AsyncEngine
from radixlm.assembly import Engine as Engine
from radixlm.core.config import EngineConfig as EngineConfig
from radixlm.core.errors import ProgramError as ProgramError
from radixlm.core.grammar import Grammar as Grammar
from radixlm.core.request import FinishReason as FinishReason
from radixlm.core.request import Namespace as Namespace
from radixlm.core.request import RequestOutput as RequestOutput
from radixlm.core.sampling import SamplingParams as SamplingParams
from radixlm.lang.api import assistant as assistant
from radixlm.lang.api import assistant_begin as assistant_begin
from radixlm.lang.api import assistant_end as assistant_end
from radixlm.lang.api import flush_cache as flush_cache
from radixlm.lang.api import gen as gen
from radixlm.lang.api import gen_int as gen_int
from radixlm.lang.api import gen_string as gen_string
from radixlm.lang.api import select as select
from radixlm.lang.api import set_default_backend as set_default_backend
from radixlm.lang.api import system as system
from radixlm.lang.api import system_begin as system_begin
from radixlm.lang.api import system_end as system_end
from radixlm.lang.api import user as user
from radixlm.lang.api import user_begin as user_begin
from radixlm.lang.api import user_end as user_end
from radixlm.lang.choices import ChoicesDecision as ChoicesDecision
from radixlm.lang.choices import ChoicesSamplingMethod as ChoicesSamplingMethod
from radixlm.lang.choices import greedy_token_selection as greedy_token_selection
from radixlm.lang.choices import token_length_normalized as token_length_normalized
from radixlm.lang.choices import unconditional_likelihood_normalized as unconditional_likelihood_normalized  # fmt: skip
from radixlm.lang.openai_backend import OpenAI as OpenAI
from radixlm.lang.program import Function as Function
from radixlm.lang.program import function as function
from radixlm.lang.program_state import State as State
from radixlm.lang.runtime_endpoint import RuntimeEndpoint as RuntimeEndpoint

__version__: str
