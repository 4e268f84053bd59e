"""What every command of this project prints, and how it ends."""
