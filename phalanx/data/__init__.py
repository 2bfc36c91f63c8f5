"""From the user's data to batches on the devices: source (read), columns (check), feed (place, ahead)."""
