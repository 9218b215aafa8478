"""Words every layer shares: types, errors, configuration, requests, decisions. Standard library only."""
