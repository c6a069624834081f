"""The pre-warm job: tune, seal and prove every planned shape, and ship the result as one bundle. Imports handlers."""
