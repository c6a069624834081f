"""Environment variables that spoil a warm node, as MIOpen 3.4, PyTorch and ONNX Runtime were seen to take them."""

from __future__ import annotations

from collections.abc import Mapping

from warmup.doctor.finding import Finding, error, note, warning

_FIND_MODES = ("NORMAL", "FAST", "HYBRID", "<4>", "DYNAMIC_HYBRID", "TRUST_VERIFY", "TRUST_VERIFY_FULL")
_ENFORCE = ("NONE", "DB_UPDATE", "SEARCH", "SEARCH_DB_UPDATE", "DB_CLEAN")
_UNSET = "unset {}"
# What only a tuning or debugging session wants, with what it does to a server.
_SPOILERS = {
    "MIOPEN_DISABLE_CACHE": "MIOpen neither loads nor saves compiled kernels: every process compiles every kernel",
    "MIOPEN_DEBUG_DISABLE_FIND_DB": "MIOpen reads no find-db: every shape is searched for again",
    "MIOPEN_DEBUG_DISABLE_USER_DB": "MIOpen does not read the records that were tuned for this node",
    "MIOPEN_DEBUG_DISABLE_SYSTEM_DB": "MIOpen does not read the records that AMD ships",
    "MIOPEN_DEBUG_COMPILE_ONLY": "MIOpen compiles and then fails every convolution",
}
_LIMITERS = ("MIOPEN_DEBUG_FIND_ONLY_SOLVER", "MIOPEN_DEBUG_CONV_", "MIOPEN_DEBUG_PERFDB_OVERRIDE")
_DEVICE = ("MIOPEN_DEVICE_CU", "MIOPEN_DEVICE_ARCH", "MIOPEN_DEBUG_ENFORCE_DEVICE")
_LOGGING = ("MIOPEN_ENABLE_LOGGING", "MIOPEN_ENABLE_LOGGING_CMD", "MIOPEN_ENABLE_LOGGING_ROCTX")
_FALSE = ("", "0", "false", "off", "no", "disable", "disabled")
_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def check_environment(variables: Mapping[str, str], devices: int) -> list[Finding]:
    """The findings in a serving process's environment; ``devices`` is how many GPUs the node has."""
    findings = [*_modes(variables), *_home(variables, devices), *_visible(variables, devices), *_frameworks(variables)]
    for name, effect in _SPOILERS.items():
        if _on(variables, name):
            findings.append(error("environment", name, f"{name}={variables[name]}", effect, _UNSET.format(name)))
    for name in sorted(variables):
        if name.startswith(_LIMITERS):
            why = "MIOpen leaves out solvers, and the poorer records that it then writes keep winning later"
            findings.append(warning("environment", name, f"{name}={variables[name]}", why, _UNSET.format(name)))
        elif name in _DEVICE:
            why = "MIOpen takes this device for another one and looks for databases under that one's name"
            findings.append(warning("environment", name, f"{name}={variables[name]}", why, _UNSET.format(name)))
        elif name in _LOGGING and _on(variables, name):
            why = "MIOpen prints a line for every call"
            findings.append(warning("environment", name, f"{name}={variables[name]}", why, _UNSET.format(name)))
    level = variables.get("MIOPEN_LOG_LEVEL", "")
    if level.isdecimal() and int(level) >= 5:
        why = "MIOpen prints lines for every execution"
        findings.append(warning("environment", "MIOPEN_LOG_LEVEL", f"MIOPEN_LOG_LEVEL={level}", why, "set 4 or less"))
    return findings


def _modes(variables: Mapping[str, str]) -> list[Finding]:
    findings = []
    name = "MIOPEN_FIND_MODE"
    mode = variables.get(name, "")
    if mode:
        what, do = f"{name}={mode}", "serve with FAST (2): it uses records and never searches"
        number = int(mode) if mode.isdecimal() else _index(_FIND_MODES, mode)
        if number in (1, 4):
            why = "every process searches again for every shape, whatever the databases hold"
            findings.append(error("environment", name, what, why, do))
        elif not 1 <= number <= 7:
            why = "MIOpen fails every convolution (status 7), or ignores the value"
            findings.append(error("environment", name, what, why, do))
        elif number >= 6:
            why = "MIOpen before 3.5 fails on the word and ignores the number; later ones measure while serving"
            findings.append(warning("environment", name, what, why, do))
    name = "MIOPEN_FIND_ENFORCE"
    enforce = variables.get(name, "")
    if enforce and enforce.upper() not in ("1", "NONE"):
        known = enforce.upper() in _ENFORCE or (enforce.isdecimal() and 1 <= int(enforce) <= len(_ENFORCE))
        why = (
            "it forces the NORMAL find mode, which searches in every process, and tunes inside requests"
            if known
            else "MIOpen fails every convolution with 'stoul' (status 7)"
        )
        findings.append(error("environment", name, f"{name}={enforce}", why, _UNSET.format(name)))
    return findings


def _home(variables: Mapping[str, str], devices: int) -> list[Finding]:
    if variables.get("HOME", "") not in ("", "/"):
        return []
    given = [name for name in ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR") if variables.get(name)]
    if len(given) == 2:
        return []
    report = error if devices else warning  # without a GPU it is only a sign of what would come
    return [
        report(
            "environment",
            "HOME",
            f"HOME is {variables['HOME']!r}" if "HOME" in variables else "HOME is not set",
            "MIOpen keeps databases and kernels in the temporary directory, where a restart loses them",
            "set HOME, or both MIOPEN_USER_DB_PATH and MIOPEN_CUSTOM_CACHE_DIR",
        )
    ]


def _visible(variables: Mapping[str, str], devices: int) -> list[Finding]:
    findings = []
    for name in _VISIBLE:
        if not devices or name not in variables:
            continue
        listed = variables[name].strip()
        numbers = [item.strip() for item in listed.split(",") if item.strip()]
        beyond = [item for item in numbers if item.isdecimal() and int(item) >= devices]
        if not numbers or numbers[0] == "-1":
            why = "no GPU is visible to this process"
            findings.append(error("environment", name, f"{name}={listed!r}", why, _UNSET.format(name)))
        elif beyond:
            why = (
                f"the node has {devices} devices, numbered from 0; HIP stops at the first number that it does not know"
            )
            do = f"name devices below {devices}"
            findings.append(error("environment", name, f"{name}={listed} names {', '.join(beyond)}", why, do))
    return findings


def _frameworks(variables: Mapping[str, str]) -> list[Finding]:
    findings = []
    if _on(variables, "HSA_XNACK"):
        why = (
            "MIOpen looks for databases with _xnack in their name; AMD ships none, and others tuned without it are lost"
        )
        findings.append(warning("environment", "HSA_XNACK", "HSA_XNACK is on", why, "unset HSA_XNACK, or warm with it"))
    name = "HSA_OVERRIDE_GFX_VERSION"
    if variables.get(name):
        why = "the GPU passes for another arch, so MIOpen reads and writes that one's databases"
        findings.append(warning("environment", name, f"{name}={variables[name]}", why, "use builds for this GPU"))
    if _on(variables, "PYTORCH_TUNABLEOP_ENABLED") and variables.get("PYTORCH_TUNABLEOP_TUNING", "1") != "0":
        name, why = "PYTORCH_TUNABLEOP_TUNING", "PyTorch tunes every new matrix product inside the request"
        findings.append(warning("environment", name, "TunableOp tunes while serving", why, f"set {name}=0"))
    name = "PYTORCH_MIOPEN_SUGGEST_NHWC"
    if name in variables:
        why = "it decides the layout in the keys of channels_last models: tuned with one value, lost with the other"
        findings.append(
            note("environment", name, f"{name}={variables[name]}", why, "serve with the value of the warm-up")
        )
    name = "PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK"
    if _on(variables, name):
        why = "a MIOpen of another version than PyTorch was built with is taken without a word"
        findings.append(warning("environment", name, f"{name}={variables[name]}", why, _UNSET.format(name)))
    if variables.get("AMD_COMGR_CACHE") == "0":
        why = "what the compiler library made is not kept: hipRTC compiles again in every process"
        findings.append(warning("environment", "AMD_COMGR_CACHE", "AMD_COMGR_CACHE=0", why, "unset AMD_COMGR_CACHE"))
    return findings


def _on(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").lower() not in _FALSE


def _index(names: tuple[str, ...], text: str) -> int:
    """The number of a mode's name, 0 for a word that is none."""
    upper = text.upper()
    return names.index(upper) + 1 if upper in names else 0
