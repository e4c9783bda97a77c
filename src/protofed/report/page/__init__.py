"""The page of the report and of the viewer: its frame, and the components that draw."""
