"""Report section on attacks: scores, grants, and the attack's own notes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from fl_app.report.data.attack_settings import differing_settings
from fl_app.report.data.formats import DASH, format_number, format_short
from fl_app.report.data.scores import LPIPS, METRICS, PSNR, Metric, lacks_lpips, mean_score, worst_score
from fl_app.report.data.update_kinds import MASKED, TRAINED, update_words
from fl_app.report.markup import Child, Html, element, table
from fl_app.report.pages.answers import NO_LPIPS
from fl_app.report.pages.metric_notes import metric_name
from fl_app.results import Attack, Run

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")

_GRANTS = {
    "labels": "the true labels",
    "batch_size": "the batch size",
    "training": "the client's mode",
    "lr": "the learning rate",
    "local_steps": "the number of local steps",
    "num_classes": "the number of classes",
    "input_shape": "the input's shape",
    "mean": "the normalisation's mean",
    "std": "the normalisation's standard deviation",
    "defense": "the defense and its settings",
    "buffers": "the BatchNorm statistics that were sent",
    "sent": "which entries travelled",
    "length": "the number of tokens",
    "history": "earlier rounds of the same client",
    "same_batch": "that the client has no other samples",
    "images": "images of its own",
}


def attack_section(run: Run) -> list[Child]:
    """Return the scores, grants and notes of each attack."""
    if not run.comparisons:
        return []
    # a label or text attack has no images, and then no columns for them
    attacks = run.comparisons
    with_images = any(one.file("images") or worst_score(PSNR, [one]) is not None for one in attacks)
    shown = METRICS if with_images else ()
    settings_of = differing_settings(run.attacks)
    others = list(dict.fromkeys(name for attack in attacks for name in attack.others))
    header: list[Child] = ["attack", "update", *map(metric_name, shown), "labels"]
    header += [name.replace("_", " ") for name in others]
    header += ["round", "client", "batch", "objective", "seconds"]
    rows = [
        [
            _name_cell(run, attack, settings_of(attack)),
            element("span", update_words(run, attack), class_="phrase"),
            *(_score_cell(metric, attack) for metric in shown),
            _label_cell(attack),
            *(format_short(attack.others.get(name)) for name in others),
            _number(attack.round),
            _client_cell(attack),
            _number(attack.batch_size),
            format_short(attack.objective),
            format_number(attack.seconds, 1),
        ]
        for attack in attacks
    ]
    return [
        element("h2", "Scores of each attack"),
        element(
            "p",
            "Each score is first that of the worst case for the user, which is the best image for the "
            "attacker: highest PSNR and SSIM, lowest LPIPS and MSE. Below it is the mean over the batch, if "
            "that has several.",
            data_fact="worst-case",
        )
        if with_images
        else None,
        table(header, rows, words=2),
        _manipulated_remark(run),
        _trained_remark(run),
        _sum_remark(run),
        _masked_remark(run),
        _tuning_remark(run),
        _unscored_remark(run),
        _grants(run),
        _attack_notes(run),
    ]


def _name_cell(run: Run, attack: Attack, settings: str) -> Child:
    name = attack.name
    if attack.adaptive:
        name += f" (adaptive{', under-tuned' if _is_behind(run, attack) else ''})"
    if settings:
        return [name, element("small", f" {settings}", data_fact="attack-settings")]
    return name


def _is_behind(run: Run, attack: Attack) -> bool:
    """Return whether the adaptive attacker did worse than the plain one."""

    def case(one: Attack) -> tuple[object, ...]:
        return one.name, one.settings_hash, one.update, one.round, one.sender, one.summed, one.labels_from

    if attack.update == "masked":
        return False  # of two guesses one is always behind
    plain = [other for other in run.comparisons if not other.adaptive and case(other) == case(attack)]
    theirs, ours = mean_score(PSNR, plain), mean_score(PSNR, [attack])
    return theirs is not None and ours is not None and ours < theirs


def _client_cell(attack: Attack) -> str:
    if attack.update == "sum":
        return f"{attack.summed or 'all'} together"
    client = _number(attack.sender)
    return f"{client} (named the locations)" if attack.broadcaster else client


def _number(value: int | None) -> str:
    return DASH if value is None else str(value)


def _score_cell(metric: Metric, attack: Attack) -> Child:
    if metric is LPIPS and lacks_lpips([attack]):
        words, reason = NO_LPIPS.split(" (")
        return [words, element("small", f" ({reason}")]
    # of a single image the best is the mean
    mean = mean_score(metric, [attack]) if attack.batch_size != 1 else None
    below = None if mean is None else element("small", f" mean {metric.show(mean)}")
    return [metric.show(worst_score(metric, [attack])), below]


def _label_cell(attack: Attack) -> str:
    if attack.labels_from == "granted":
        return "granted"
    names = {"precision": "P", "recall": "R", "f1": "F1", "exact": "exact"}
    known = [
        f"{short} {format_number(attack.label_scores[name], 2)}"
        for name, short in names.items()
        if name in attack.label_scores
    ]
    return ", ".join(known) or DASH


def _tuning_remark(run: Run) -> Html | None:
    if not any(attack.adaptive and _is_behind(run, attack) for attack in run.comparisons):
        return None
    return element(
        "p",
        "An adaptive attacker could always do what the plain one does. Where its mean PSNR is behind, "
        "it is under-tuned, and we report the plain result.",
        data_fact="under-tuned",
    )


def _manipulated_remark(run: Run) -> Html | None:
    if not any(attack.manipulated for attack in run.comparisons):
        return None
    return element(
        "p",
        "In attacked rounds the server sent these clients a manipulated model, and left their updates out of "
        "the mean. “recovered” is the share of the client's images that were found exactly (above 70 dB); "
        "the mean of a score is over the images that were found at all.",
    )


def _trained_remark(run: Run) -> Html | None:
    if all(attack.update != "trained" for attack in run.comparisons):
        return None
    return element(
        "p",
        f"Rows of “{TRAINED}” compare the reconstruction with the images that this defense put "
        "in the originals' place; the others compare it with the originals.",
        data_fact="trained",
    )


def _sum_remark(run: Run) -> Html | None:
    if all(attack.update != "sum" for attack in run.comparisons):
        return None
    return element(
        "p",
        "Rows of a sum are attacks on the mean update of several clients, which secure aggregation reveals: "
        "their batch is that of all these clients, and so are the images.",
    )


def _masked_remark(run: Run) -> Html | None:
    if all(attack.update != "masked" for attack in run.comparisons):
        return None
    return element(
        "p",
        f"Rows of “{MASKED}” are attacks on what one client sent: under its masks that is uniform noise, so "
        "their scores are those of a guess.",
        data_fact="masked",
    )


def _unscored_remark(run: Run) -> Html | None:
    if all(attack.scored for attack in run.comparisons):
        return None
    return element(
        "p",
        "Rows of dashes were not scored: a client did not allow an audit, so the original is not known.",
    )


def _grants(run: Run) -> list[Child]:
    grouped: dict[str, list[str]] = {}
    for attack in run.comparisons:
        grouped.setdefault(_grant_words(attack), []).append(attack.name)
    items = [
        element("li", element("strong", ", ".join(dict.fromkeys(names))), ": ", words, data_fact="granted")
        for words, names in grouped.items()
    ]
    batch = run.setting("audit", "batch_size")
    return [
        element("h3", "What the attacker was granted"),
        element(
            "p",
            "In an attacked round the attacked client's batch was set by ",
            element("code", f"audit.batch_size={batch or DASH}"),
            ".",
        ),
        element("ul", items),
    ]


def _grant_words(attack: Attack) -> str:
    given, withheld = [], []
    for name, value in attack.granted.items():
        if name == "training" and isinstance(value, bool):
            given.append(f"the client's mode ({'train' if value else 'eval'})")
        elif value is None or value is False:
            withheld.append(_GRANTS.get(name, name))
        elif value is True:
            given.append(_GRANTS.get(name, name))
        elif isinstance(value, str):
            given.append(f"{_GRANTS.get(name, name)} {value}")
        else:
            given.append(f"{_GRANTS.get(name, name)} ({_brief(value)})")
    words = ", ".join(["the model and the update", *given]) + "."
    words += f" Not granted: {', '.join(withheld)}." if withheld else ""
    inferred = attack.labels_from and attack.labels_from != "granted"
    return f"{words} Labels came from: {attack.labels_from}." if inferred else words


def _brief(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 90 else text[:89] + "…"


def _attack_notes(run: Run) -> list[Child]:
    notes: dict[str, dict[str, list[str]]] = {}
    for attack in run.comparisons:
        for note in attack.notes:
            alike = notes.setdefault(_NUMBER.sub("#", note), {})
            alike.setdefault(note, []).append(f"{attack.name}, {update_words(run, attack)}")
    if not notes:
        return []
    items = [
        element("li", _joined(list(alike)), " ", element("small", f"({'; '.join(_distinct(alike))})"))
        for alike in notes.values()
    ]
    return [element("h3", "Notes of the attacks"), element("ul", items)]


def _joined(alike: Sequence[str]) -> str:
    """Return notes that differ in numbers alone as one note, with the range of each number."""
    ranges = zip(*map(_NUMBER.findall, alike), strict=True)
    shown = iter([_range(numbers) for numbers in ranges])
    return _NUMBER.sub(lambda _: next(shown), alike[0])


def _range(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"


def _distinct(alike: Mapping[str, Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(who for senders in alike.values() for who in senders))
