"""The workloads of SGLang's paper (arXiv 2312.07104, section 6) with synthetic content."""
