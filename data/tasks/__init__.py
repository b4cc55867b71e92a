"Tasks that travel in the wheel, as the package `alphabook._tasks`."
