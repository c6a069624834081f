"""What a model asks of MIOpen at each shape of its plan, found without a GPU and without computing anything."""
