//! GitHub'"'"'s container hooks (ADR 1891): the runner'"'"'s requests, carried out.
