"Prompts that travel in the wheel, as the package `alphabook._prompts`."
