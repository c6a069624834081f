"""One verified directory or archive that carries the stores, the plan and the proof from the sweep to the servers.

``build.build`` turns a directory of filled stores into a bundle, ``publish.publish`` ships it, ``pull.pull`` fetches
and verifies it, ``manifest.open_bundle`` reads one that is on this machine already.
"""
