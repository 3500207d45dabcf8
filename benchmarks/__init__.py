"""Side by side with other libraries: the same numbers, and how long they take."""
