"""HTTP: OpenAI's and Anthropic's dialects over one engine. Wire formats live here and nowhere else."""
