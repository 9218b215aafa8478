"""Load on any server of OpenAI's dialect: what is sent and when, and what the answers' times and counts were."""
