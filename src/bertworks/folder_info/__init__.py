"""What a folder is: any folder that bertworks writes or reads in, its kind, content, state and next command out."""
