//! Scenarios of jobs that end, and the verdict on each.

use super::*;

enum ScenarioStep {
    Left(u32, Option<&'static str>, Option<u32>),
    Stalled(u32, &'static str),
    Wrote(u32, &'static str),
    Exit(u32, Exit),
    Stopping,
    Interrupted(i32),
    Host(&'static str),
    Condemned(u32, &'static str),
}
use ScenarioStep::{Condemned, Host, Interrupted, Left, Stalled, Stopping, Wrote};

fn outcome_of(scenario: Vec<ScenarioStep>) -> JobOutcome {
    let mut verdict = FailureAnalysis::default();
    for slot in 0..4 {
        let (worker, rank) = (Worker(slot), Rank(slot));
        verdict.enter(WorkerInfo { worker, rank, host: "node".into(), slot });
    }
    for step in scenario {
        match step {
            Left(rank, error, blames) => {
                verdict.left(Worker(rank), error.map(Raised::by_program), blames.map(Worker));
            }
            Stalled(rank, text) => {
                let error = Raised { text: text.into(), kind: CauseKind::Stalled };
                verdict.left(Worker(rank), Some(error), None);
            }
            Wrote(rank, line) => verdict.wrote(Worker(rank), line),
            ScenarioStep::Exit(rank, exit) => verdict.exited(Worker(rank), exit),
            Stopping => verdict.stopping(),
            Interrupted(signal) => {
                verdict.end_unless_failed(EndCause::Interrupted { signal, ranks: 4 });
                verdict.stopping();
            }
            Condemned(rank, cause) => {
                verdict.condemn_first(Worker(rank), Cause::plain(CauseKind::Halted, cause));
            }
            Host(reason) => {
                let (reason, hint) = (reason.into(), "look at it".into());
                verdict.end_unless_failed(EndCause::HostLost { reason, hint });
            }
        }
    }
    verdict.outcome()
}

fn code(rank: u32, code: i32) -> ScenarioStep {
    ScenarioStep::Exit(rank, Exit::Code(code))
}

fn killed(rank: u32, signal: i32) -> ScenarioStep {
    ScenarioStep::Exit(rank, Exit::Signal(signal))
}

type Case = (&'static str, Vec<ScenarioStep>, u8, &'static [&'static str]);

fn check(cases: Vec<Case>) {
    for (name, scenario, code, texts) in cases {
        let outcome = outcome_of(scenario);
        assert_eq!(outcome.code, code, "{name}: {outcome:?}");
        for text in texts {
            let report = outcome.verdict.text.as_deref().unwrap_or_default();
            assert!(report.contains(text), "{name}: {text:?} is not in\n{report}");
        }
    }
}

const LOST_2: Option<&str> = Some("HorovodInternalError: lost rank 2");

#[test]
fn the_first_cause_is_found_by_following_the_blame() {
    check(vec![
        (
            "the first by arrival",
            vec![code(2, 3), Stopping, killed(0, 15), killed(1, 15), killed(3, 9)],
            3,
            &[
                "error: rank 2 (node, slot 2) exited with code 3\n  3 ranks (0, 1, 3) were terminated\n\n\
               hint: it wrote nothing to stderr; look for what ends the program with code 3\n",
            ],
        ),
        (
            "a victim that is reported first",
            vec![Left(0, LOST_2, Some(2)), code(0, 1), killed(2, 9), Stopping, killed(1, 15)],
            137,
            &[
                "error: rank 2 (node, slot 2) was killed by signal 9 (SIGKILL)\n",
                "  rank 0 failed because of it\n",
                "  rank 1 was terminated\n",
                "hint: if nobody killed it, memory ran out",
            ],
        ),
        (
            "a chain of blame",
            vec![
                Left(0, Some("HorovodInternalError: lost rank 1"), Some(1)),
                Left(1, LOST_2, Some(2)),
                code(0, 1),
                code(1, 1),
                killed(2, 11),
            ],
            139,
            &[
                "error: rank 2 (node, slot 2) was killed by signal 11 (SIGSEGV)",
                "2 ranks (0, 1) failed because of it",
            ],
        ),
        (
            "ranks that blame each other",
            vec![
                Left(0, Some("HorovodInternalError: lost rank 1"), Some(1)),
                Left(1, Some("HorovodInternalError: lost rank 0"), Some(0)),
                code(1, 5),
                code(0, 4),
            ],
            4,
            &["error: rank 0 (node, slot 0) raised HorovodInternalError: lost rank 1"],
        ),
        (
            "one that left early with code 0",
            vec![code(2, 0), Left(1, LOST_2, Some(2)), code(1, 1), Stopping],
            1,
            &[
                "error: rank 1 (node, slot 1) raised HorovodInternalError: lost rank 2\n",
                "  rank 2 (node, slot 2) had left early, with exit code 0\n",
                "hint: every rank must make the same calls",
            ],
        ),
    ]);
}

#[test]
fn exceptions_are_named() {
    check(vec![
        (
            "an exception that the rank reported",
            vec![Left(3, Some("ValueError: boom\nand more"), None), code(3, 1)],
            1,
            &["error: rank 3 (node, slot 3) raised ValueError: boom\n  and more\n"],
        ),
        (
            "a stall",
            vec![
                Stalled(
                    1,
                    "HorovodInternalError: One or more tensors were submitted\nMissing ranks:\n\
                     0: [allreduce.x] (node, slot 0; it has submitted nothing yet)\nWill \
                     shutdown.\nHorovod has been shut down. This was caused by an exception on \
                     one of the ranks or an attempt to ...",
                ),
                code(1, 1),
            ],
            1,
            &[
                "raised HorovodInternalError: One or more tensors were submitted\n  Missing ranks:\n  \
                 0: [allreduce.x] (node, slot 0; it has submitted nothing yet)\n\nhint: every rank \
                 must make the same calls: see what the missing ranks do instead",
            ],
        ),
        (
            "an exception after a traceback that was only logged",
            vec![
                Wrote(1, "Traceback (most recent call last):"),
                Wrote(1, "  File \"x.py\", line 1, in <module>"),
                Wrote(1, "TimeoutError: busy"),
                Wrote(1, "giving up"),
                Left(1, None, None),
                code(1, 1),
            ],
            1,
            &[
                "rank 1 (node, slot 1) exited with code 1\n  its last lines on stderr:\n",
                "giving up\n",
            ],
        ),
        (
            "an exception that only its lines show",
            vec![
                Wrote(1, "Traceback (most recent call last):"),
                Wrote(1, "  File \"x.py\", line 1, in <module>"),
                Wrote(1, "    raise pkg.BadThing(\"a: b\")"),
                Wrote(1, "pkg.BadThing: a: b"),
                Wrote(1, ""),
                code(1, 1),
            ],
            1,
            &["error: rank 1 (node, slot 1) raised pkg.BadThing: a: b\n  at x.py:1: raise \
               pkg.BadThing(\"a: b\")\n"],
        ),
        (
            "one that raised but had to be stopped",
            vec![
                Left(2, Some("ValueError: boom"), None),
                Left(0, LOST_2, Some(2)),
                code(0, 1),
                Stopping,
                killed(2, 15),
            ],
            1,
            &["error: rank 2 (node, slot 2) raised ValueError: boom\n"],
        ),
    ]);
}

#[test]
fn a_rank_with_the_same_exception_is_no_victim() {
    check(vec![(
        "the same exception on every rank, of which one knew of another's end",
        vec![
            Left(1, Some("NameError: x"), None),
            Left(0, Some("NameError: x"), Some(1)),
            Left(2, Some("HorovodInternalError: lost rank 1"), Some(1)),
            code(1, 1),
            code(0, 1),
            code(2, 1),
        ],
        1,
        &[
            "error: rank 1 (node, slot 1) raised NameError: x\n",
            "  rank 2 failed because of it\n  rank 0 failed too\n",
        ],
    )]);
}

#[test]
fn commands_that_never_ran_and_interrupts_are_reported() {
    let not_found = || Exit::NotStarted {
        obstacle: StartFailure::Missing,
        reason: "`trian` was not found".into(),
    };
    check(vec![
        (
            "a command that does not exist",
            vec![ScenarioStep::Exit(0, not_found()), ScenarioStep::Exit(1, not_found())],
            127,
            &["rank 0 (node, slot 0) could not be started: `trian` was not found", "spelling"],
        ),
        (
            "an agent that died",
            vec![Host("the agent on `node` was killed"), code(0, 1)],
            1,
            &["error: the agent on `node` was killed\n", "hint: look at it\n"],
        ),
        (
            "an interrupt",
            vec![Interrupted(2), killed(0, 2), code(1, 0), killed(2, 9), killed(3, 2)],
            130,
            &["error: stopped by signal 2 (SIGINT), along with its 4 ranks\n"],
        ),
        (
            "an interrupt after a failure",
            vec![code(1, 7), Interrupted(2), killed(0, 2)],
            7,
            &["rank 1 (node, slot 1) exited with code 7"],
        ),
    ]);
}

#[test]
fn a_successful_job_reports_nothing() {
    let outcome = outcome_of((0..4).map(|rank| code(rank, 0)).collect());
    assert_eq!(outcome, JobOutcome::well());
}

#[test]
fn long_texts_of_ranks_are_cut() {
    let long: &'static str = "é".repeat(5000).leak();
    let outcome = outcome_of(vec![Left(0, Some(long), None), code(0, 1)]);
    assert!(outcome.verdict.text.unwrap().len() < 2000);
}

#[test]
fn a_rank_that_was_stopped_too_long_is_the_cause_whichever_rank_fails_first() {
    let stopped = "was stopped (SIGSTOP), process 77";
    check(vec![
        (
            "ended by the launcher",
            vec![Condemned(1, stopped), killed(1, 9), Left(0, LOST_1, Some(1)), code(0, 1)],
            1,
            &["error: rank 1 (node, slot 1) was stopped (SIGSTOP), process 77\n", "who stopped it"],
        ),
        (
            "after others gave up on their own",
            vec![
                Left(0, Some("HorovodInternalError: stalled"), None),
                code(0, 1),
                Condemned(1, stopped),
                Stopping,
                killed(1, 9),
            ],
            1,
            &["error: rank 1 (node, slot 1) was stopped (SIGSTOP)", "rank 0 failed too"],
        ),
    ]);
}

const LOST_1: Option<&str> = Some("HorovodInternalError: lost rank 1");

#[test]
fn lost_output_is_an_error_unless_there_is_a_worse_one() {
    let lost = ["standard output cannot be written: No space left on device".to_owned()];
    let well = || outcome_of((0..4).map(|rank| code(rank, 0)).collect());
    assert_eq!(well().without(&[]), well());
    let outcome = well().without(&lost);
    let text = outcome.verdict.text.unwrap();
    assert!(outcome.code == 1 && text.contains("output was lost: standard output"), "{text}");
    let failed = || outcome_of(vec![code(2, 3)]);
    assert_eq!(failed().without(&lost), failed());
}

#[test]
fn the_report_names_the_process_and_its_end_and_the_hint_refers_to_lines_that_exist() {
    use OutputStream::{Stderr, Stdout};
    let report = |view, line: Option<&str>| {
        let mut verdict = FailureAnalysis::default();
        let (worker, rank) = (Worker(1), Rank(1));
        verdict.enter(WorkerInfo { worker, rank, host: "node".into(), slot: 0 });
        verdict.runs_as(worker, 4711);
        verdict.seen_as(worker, view);
        line.into_iter().for_each(|line| verdict.wrote(worker, line));
        verdict.left(worker, Some(Raised::by_program("ValueError: boom")), None);
        verdict.ended_at(worker, "14:03:59".into());
        verdict.exited(worker, Exit::Code(1));
        let outcome = verdict.outcome();
        let first = outcome.verdict.first.unwrap();
        assert_eq!((first.pid, first.time.as_deref()), (Some(4711), Some("14:03:59")));
        outcome.verdict.text.unwrap()
    };
    let line = Some("ValueError: boom");
    for (view, line, hint) in [
        (OutputView::Marked(Stderr), line, "see the lines marked `[1]<stderr>` above\n"),
        (OutputView::Marked(Stdout), line, "see the lines marked `[1]<stdout>` above\n"),
        (OutputView::Unmarked, line, "see its output above\n"),
        (OutputView::Hidden, line, "`--ranks` hides its output: run the job again"),
        (OutputView::Marked(Stderr), None, "it wrote nothing to stderr: see the log files"),
        (OutputView::Unmarked, None, "it wrote nothing to stderr: see the log files"),
    ] {
        let text = report(view, line);
        let begin = "error: rank 1 (node, slot 0) raised ValueError: boom\n  process 4711, ended at \
                     14:03:59\n\nhint: ";
        assert!(text.starts_with(&format!("{begin}{hint}")), "{text}");
    }
}

#[test]
fn the_last_lines_of_a_terminal_are_not_attributed_to_stderr() {
    let mut verdict = FailureAnalysis::default();
    verdict.enter(WorkerInfo { host: "node".into(), ..WorkerInfo::default() });
    verdict.seen_as(Worker(0), OutputView::Unmarked);
    verdict.wrote(Worker(0), "to stdout");
    verdict.exited(Worker(0), Exit::Code(3));
    let text = verdict.outcome().verdict.text.unwrap();
    assert!(text.contains("\n  its last line: to stdout\n"), "{text}");
}
