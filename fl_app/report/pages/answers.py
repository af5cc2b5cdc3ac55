"""First screen of a report: four questions, answered in plain words with the run's numbers."""

from __future__ import annotations

import math

from fl_app.report.charts.tiles import read_tiles, tile_uri
from fl_app.report.data.formats import (
    format_best,
    format_bytes,
    format_factor,
    format_number,
    format_percent,
    format_psnr,
    format_short,
)
from fl_app.report.data.gallery import picture_caption
from fl_app.report.data.intervals import half_width_of_difference
from fl_app.report.data.outcome import THRESHOLDS, Outcome, outcome_of
from fl_app.report.data.runs import load_baseline
from fl_app.report.data.scores import LPIPS, PSNR, SSIM, closest_image, lacks_lpips, mean_score, worst_score
from fl_app.report.data.update_kinds import MASKED, as_sent, of_update, update_words
from fl_app.report.markup import Child, Html, element
from fl_app.report.pages.metric_notes import metric_name
from fl_app.results import Attack, Run

NO_LPIPS = "not measured (weights missing)"


def four_answers(run: Run) -> Html:
    """Return the cards: leak without the defense, leak with it, accuracy, bytes."""
    return element(
        "section",
        _card(
            "would-leak",
            "What would have leaked?",
            *_would_leak(run),
            outcome=outcome_of(of_update(run, "undefended")),
        ),
        _card("does-leak", "What does leak?", *_does_leak(run), outcome=outcome_of(as_sent(run))),
        _card("accuracy", "What did it cost in accuracy?", *_accuracy(run)),
        _card("bytes", "How many bytes went up and down?", *_bytes(run)),
        class_="cards",
    )


def _card(name: str, question: str, *children: Child, outcome: Outcome | None = None) -> Html:
    if outcome is None:
        return element("article", element("h2", question), *children, class_="card", data_card=name)
    grade = element(
        "span", f"{outcome.icon} {outcome.value}", class_=f"verdict {outcome.look}", title=THRESHOLDS
    )
    return element(
        "article",
        element("h2", question, " ", grade),
        *children,
        class_=f"card {outcome.look}",
        data_card=name,
        data_outcome=outcome.value,
    )


def _would_leak(run: Run) -> list[Child]:
    attacks = of_update(run, "undefended")
    if attacks:
        return _leak(attacks, "the raw update")
    if not run.comparisons:
        return _no_attack(run)
    if run.defense == "none":
        same = "What would have leaked is what does leak: see the next card."
        return [_big("No defense in this run"), _text(same)]
    contrast = [_code("audit.contrast=true"), " shows it to the attacker too."]
    return [_big("Not measured"), _text("The raw update was not attacked:", contrast)]


def _does_leak(run: Run) -> list[Child]:
    attacks, masked = as_sent(run), _masked_sentence(run)
    if not run.comparisons:
        return _no_attack(run)
    if not attacks:
        what = "No sum of clients" if of_update(run, "masked") else "No update that was sent"
        return [_big("Not measured"), _text(f"{what} was attacked.", masked)]
    return [*_leak(attacks, _sent_words(run, attacks), _difference(run)), _text(masked)]


def _sent_words(run: Run, attacks: list[Attack]) -> str:
    found = closest_image(attacks)
    attack = found[0] if found else attacks[0]
    if attack.update == "sum":
        return update_words(run, attack)
    return "the update that was sent" if run.defense == "none" else f"the update as sent, under {run.defense}"


def _masked_sentence(run: Run) -> str | None:
    """Describe the result of an attack on one client's masked vector."""
    masked = of_update(run, "masked")
    psnr = worst_score(PSNR, masked)
    if psnr is None:
        return None
    best = f"From {MASKED} the attacker's best is {format_psnr(psnr)}"
    return f"{best}: that is a guess, for what it saw there is noise."


def _no_attack(run: Run) -> list[Child]:
    choice = run.choice("attack") or "none"
    return [
        _big("Not measured"),
        _text(["No attack result is in this run (", _code(f"attack={choice}"), ")."]),
    ]


def _leak(attacks: list[Attack], source: str, verdict: Child = None) -> list[Child]:
    found = closest_image(attacks)
    if found is not None:
        return _image_leak(attacks, *found, source=source, verdict=verdict)
    written = [a for a in attacks if a.sentence is not None and "token_accuracy" in a.others]
    if written:
        return _sentence_leak(written, source)
    read = [attack for attack in attacks if attack.texts is not None and "token_wer" in attack.others]
    if read:
        return _transcript_leak(min(read, key=lambda attack: attack.others["token_wer"]), source)
    if any(attack.scored for attack in attacks):
        return _other_leak(attacks, source)
    remark = "The attack ran, but the client did not allow an audit: there is no original to compare with."
    return [_big("Not scored"), _text(remark)]


def _sentence_leak(attacks: list[Attack], source: str) -> list[Child]:
    best = max(attacks, key=lambda attack: attack.others["token_accuracy"])
    found, true = best.texts or ("", None)
    whose = "" if best.sender is None else f" of client {best.sender}"
    granted = "granted" if best.labels_from == "granted" else "not granted"
    return [
        _big(format_percent(best.others["token_accuracy"]), " of the tokens"),
        _text(f"From {source}, attack {_attack_name(best)} read a sentence{whose}: “{found}”."),
        _original(true),
        _text(_fact("masked-tokens", granted, f"The masked places and their tokens were {granted}.")),
    ]


def _transcript_leak(attack: Attack, source: str) -> list[Child]:
    found, true = attack.texts or ("", None)
    whose = "" if attack.sender is None else f" of client {attack.sender}"
    return [
        _big(format_percent(attack.others["token_wer"]), " word errors"),
        _text(f"From {source}, attack {_attack_name(attack)} read an utterance{whose}: “{found}”."),
        _original(true),
    ]


def _original(text: str | None) -> Html | None:
    return None if text is None else _text(_fact("original-text", text, f"The original: “{text}”."))


def _image_leak(
    attacks: list[Attack], attack: Attack, position: int, *, source: str, verdict: Child
) -> list[Child]:
    count = sum(value is not None for each in attacks for value in each.scores("psnr") or each.scores("ssim"))
    whose = "" if attack.sender is None else f" of client {attack.sender}"
    whose = " of one of them" if attack.update == "sum" else whose
    facts = [] if attack.round is None else [f"round {attack.round}"]
    facts += [f"the closest of {count}"] if count > 1 else []
    where = f" ({', '.join(facts)})" if facts else ""
    psnr, ssim = worst_score(PSNR, attacks), worst_score(SSIM, attacks)
    lpips = NO_LPIPS if lacks_lpips(attacks) else LPIPS.show(worst_score(LPIPS, attacks))
    means = f"{PSNR.show(mean_score(PSNR, attacks))}, SSIM {SSIM.show(mean_score(SSIM, attacks))}"
    return [
        _big(format_psnr(psnr), [" ", metric_name(PSNR)])
        if psnr is not None
        else _big(f"SSIM {SSIM.show(ssim)}"),
        _text(f"From {source}, attack {_attack_name(attack)} rebuilt this picture{whose}{where}.", verdict),
        _text(
            f"At best for the attacker: SSIM {SSIM.show(ssim)}, LPIPS {lpips}.",
            f"Mean over all pictures, of the attack's best form: {means}." if count > 1 else None,
            _labels_sentence(attacks),
        ),
        _pair(attack, position),
    ]


def _attack_name(attack: Attack) -> str:
    return f"{attack.name} (adaptive)" if attack.adaptive else attack.name


def _labels_sentence(attacks: list[Attack]) -> str | None:
    if any(attack.labels_from == "granted" for attack in attacks):
        return "The labels were granted to the attacker."
    best = _best_f1(attacks)
    return None if best is None else f"Labels were recovered with F1 {format_number(best, 3)}."


def _best_f1(attacks: list[Attack]) -> float | None:
    return max((attack.label_scores["f1"] for attack in attacks if "f1" in attack.label_scores), default=None)


def _other_leak(attacks: list[Attack], source: str) -> list[Child]:
    best = _best_f1(attacks)
    others = [f"{name} {format_short(value)}" for attack in attacks for name, value in attack.others.items()]
    names = ", ".join(dict.fromkeys(map(_attack_name, attacks)))
    headline = f"Labels: F1 {format_number(best, 3)}" if best is not None else (others or ["No picture"])[0]
    return [
        _big(headline),
        _text(f"From {source}, attack {names} made no picture.", _labels_sentence(attacks)),
        _text(f"Other scores: {', '.join(others)}." if others else None),
    ]


def _pair(attack: Attack, position: int) -> Html | None:
    originals, rebuilt = read_tiles(attack.file("truth")), read_tiles(attack.file("images"))
    figures = [
        element(
            "figure",
            element("img", class_="tile", src=tile_uri(tiles[position]), alt=alt),
            element("figcaption", caption),
            data_row="0",
            data_side=side,
        )
        for tiles, side, alt, caption in (
            (originals, "original", "the client's picture", "original"),
            (rebuilt, "recovered", "the attacker's picture", picture_caption(attack, position)),
        )
        if position < len(tiles)
    ]
    return element("div", figures, class_="pair") if figures else None


def _difference(run: Run) -> Html | None:
    without = worst_score(PSNR, of_update(run, "undefended"))
    with_it = worst_score(PSNR, as_sent(run))
    if without is None or with_it is None or math.isinf(with_it) or run.defense == "none":
        return None
    if of_update(run, "sum"):
        # a flat picture has a high PSNR whatever is put beside it
        return _effect(
            "not comparable",
            "A sum holds other clients' pictures too: this number is not comparable with the raw update's.",
        )
    if math.isinf(without):
        return _effect("from exact", "Without the defense the attacker had the picture exactly.")
    gap = format_psnr(abs(without - with_it))
    if without > with_it:
        return _effect("helped", f"The defense took {gap} off the attacker's best picture.")
    return _effect(
        "did not help",
        f"The defense did not help: the attacker's best picture is {gap} closer to the original with it.",
    )


def _effect(value: str, sentence: str) -> Html:
    return _fact("defense-effect", value, sentence)


def _fact(name: str, value: str, sentence: str) -> Html:
    return element("span", sentence, data_fact=name, data_value=value)


def _accuracy(run: Run) -> list[Child]:
    compare: Child = [
        "One run cannot tell what the defense cost: ",
        element("code", "fl-app-report A B", class_="whole"),
        " compares it with a run without a defense.",
    ]
    baseline = load_baseline(run)
    if run.defense == "none":
        compare = "This run has no defense: it is what defended runs are to be compared with."
    elif baseline is not None and baseline.totals.accuracy is not None and run.totals.accuracy is not None:
        compare = _cost(run, run.totals.accuracy, baseline.totals.accuracy, baseline)
    if run.totals.accuracy is None:
        return [_big("Not measured"), _text("No accuracy is in this run.", compare)]
    rounds = len(run.rounds)
    where = "" if run.totals.best_round is None else f", in round {run.totals.best_round}"
    after = f"Reached after {rounds} {'round' if rounds == 1 else 'rounds'}; " if rounds else ""
    return [
        _big(format_percent(run.totals.accuracy), " final accuracy"),
        _text(
            f"{after}the best was {format_best(run.totals.best_accuracy, run.totals.best_chosen_by)}{where}.",
            f"Balanced over the two classes {format_percent(run.totals.balanced_accuracy)}, "
            f"AUROC {format_number(run.totals.auroc, 3)}."
            if run.two_classes
            else None,
            None if run.totals.wer is None else f"Word error rate {format_percent(run.totals.wer)}.",
        ),
        _text(compare),
    ]


def _cost(run: Run, accuracy: float, without: float, baseline: Run) -> list[Child]:
    """Compare with the same run without the defense; one seed is no verdict."""
    points, count = 100 * (accuracy - without), run.test_samples
    changed = f"{abs(points):.1f} points {'higher' if points > 0 else 'lower'}"
    best = format_best(baseline.totals.best_accuracy, baseline.totals.best_chosen_by)
    reached = format_percent(without)
    return [
        _fact("baseline-accuracy", reached, f"Without the defense, same seed: {reached}, at best {best}."),
        " ",
        _fact(
            "accuracy-change",
            f"{points:+.1f}",
            f"With the defense accuracy is {changed}{_chance(accuracy, without, count)}; "
            "one seed alone proves little.",
        ),
    ]


def _chance(first: float, second: float, count: int | None) -> str:
    """Return the interval of the difference of two accuracies, and whether it can be chance."""
    if not count or not (0 <= first <= 1 and 0 <= second <= 1):
        return ""
    half = half_width_of_difference(first, second, count)
    chance = ", no more than chance" if abs(first - second) <= half else ""
    return f" (± {100 * half:.1f} at 95 %{chance})"


def _bytes(run: Run) -> list[Child]:
    up, down, dense = run.totals.uplink_bytes, run.totals.downlink_bytes, run.totals.dense_bytes
    if up is None and down is None:
        return [_big("Not counted"), _text("No byte counts are in this run.")]
    rounds = len(run.rounds)
    each = (
        f"{format_bytes(None if up is None else up / rounds)} up and "
        f"{format_bytes(None if down is None else down / rounds)} down per round, all clients together."
        if rounds
        else ""
    )
    return [
        _big(f"{_whole(format_bytes(up))} up, {_whole(format_bytes(down))} down"),
        _text(each),
        _text(_against_dense(up, down, dense)),
    ]


def _against_dense(up: float | None, down: float | None, dense: float | None) -> str:
    if not dense:
        return "What a dense exchange would have taken is not known."
    taken = f"Dense float32 exchange takes {format_bytes(dense)}, both ways together"
    if not up or not down:
        return f"{taken}."
    used = up + down
    total = f"{format_factor(dense, used)} fewer" if dense >= used else f"{format_factor(used, dense)} more"
    halves = f"up {format_factor(dense / 2, up)}, down {format_factor(dense / 2, down)}"
    return f"{taken}: this run sent {total} bytes (dense ÷ sent: {halves})."


def _whole(quantity: str) -> str:
    # a line must not end between a number and its unit
    return quantity.replace(" ", "\u00a0")


def _big(text: str, unit: Child = "") -> Html:
    return element("p", text, element("small", unit) if unit else None, class_="big")


def _text(*sentences: Child) -> Html | None:
    """Make a paragraph of those sentences that there are."""
    known = [sentence for sentence in sentences if sentence]
    return (
        element("p", [[" " if index else None, known[index]] for index in range(len(known))])
        if known
        else None
    )


def _code(text: str) -> Html:
    return element("code", text)
