"""foreword beside other engines: the same prompts and the same client, in turns, on this machine."""
