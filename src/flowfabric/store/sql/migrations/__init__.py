"""Schema changes, numbered, one file per dialect; a file that was released is never edited."""
