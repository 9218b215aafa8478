"""The server's own description: `/openapi.json`, made of the types that requests are read into and answers fit."""
