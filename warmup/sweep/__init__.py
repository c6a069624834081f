"""The pre-warm job: tune, seal and prove every planned shape, in fresh processes, and make a bundle of what is left.

    outcome = sweep(Request(models, out), report)

``process`` runs ``worker`` in a process of its own and talks to it; ``journal`` remembers what is done, ``workspace``
keeps the stores whole whatever is killed, ``budget`` says what comes next and what no longer fits, ``sweep`` puts it
together. The process that sweeps imports no framework.
"""
