"""One self-contained HTML page about what warming bought: ``evidence`` reads the results, ``figures`` draws them,
``page`` puts everything together."""
