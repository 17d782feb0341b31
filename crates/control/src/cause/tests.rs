//! Messages that real programs have printed, and what is shown of each. They were recorded with
//! Python 3.11, PyTorch 2.15, TensorFlow 2.21 and JAX 0.10; only the paths were changed.

use proptest::prelude::*;

use super::*;

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!("recorded/", $name, ".txt"))
    };
}

fn tail(text: &str) -> Tail {
    let mut tail = Tail::default();
    text.lines().for_each(|line| tail.wrote(line));
    tail
}

/// What is shown of an exception that appears only on standard error.
fn written(text: &str) -> String {
    tail(text).exception().unwrap().to_string()
}

#[test]
fn plain_exceptions_are_shown_with_their_location() {
    for (text, expected) in [
        (recorded!("assert"), "AssertionError\nat /home/user/assert_.py:2 in step: assert x == 2"),
        (
            recorded!("key_error"),
            "KeyError: 'batch_size'\nat /home/user/kerr.py:2: print(cfg[\"batch_size\"])",
        ),
        (
            recorded!("import"),
            "ImportError: cannot import name 'Orderdict' from 'collections' \
             (/usr/lib/python3.11/collections/__init__.py)\nat /home/user/imp.py:1: from collections \
             import Orderdict",
        ),
        (
            recorded!("syntax"),
            "SyntaxError: '(' was never closed\nat /home/user/syn.py:2: def f(x:",
        ),
        (
            recorded!("recursion"),
            "RecursionError: maximum recursion depth exceeded\nat /home/user/rec.py:1 in f: def \
             f(n): return f(n+1)",
        ),
        (
            recorded!("state_dict"),
            "RuntimeError: Error(s) in loading state_dict for Linear:\nMissing key(s) in state_dict: \
             \"bias\".\nUnexpected key(s) in state_dict: \"foo\".\nsize mismatch for weight: copying a \
             param with shape torch.Size([4, 4]) from checkpoint, the shape in current model is \
             torch.Size([3, 2]).\nat /home/user/sd.py:2: torch.nn.Linear(2,3).load_state_dict(\
             {\"weight\": torch.ones(4,4), \"foo\": torch.ones(1)})",
        ),
        (
            recorded!("memory"),
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't \
             allocate memory: you tried to allocate 400000000000000 bytes. Error code 12 (Cannot \
             allocate memory)\nat /home/user/mem.py:2: torch.ones(10**14)",
        ),
    ] {
        assert_eq!(written(text), expected);
        assert_eq!(error_summary(text).to_string(), expected);
    }
}

#[test]
fn chains_and_groups_are_shown_with_their_causes() {
    for (text, expected) in [
        (
            recorded!("chain"),
            "KeyError: 'x'\nat /home/user/chain.py:9: {}[\"x\"]\nwhile handling: RuntimeError: cannot \
             load the shard\ncaused by: FileNotFoundError: [Errno 2] No such file or directory: \
             '/no/such'\nat /home/user/chain.py:3 in load: open(name)",
        ),
        (
            recorded!("group"),
            "ExceptionGroup: two failed (2 sub-exceptions)\n1. ValueError: a\nseen while reading \
             shard 3\n2. ExceptionGroup: inner (2 sub-exceptions)\n3. TypeError: b\n4. KeyError: \
             'c'\nat /home/user/group.py:3 in f: raise ExceptionGroup(\"two failed\", [e, \
             ExceptionGroup(\"inner\", [TypeError(\"b\"), KeyError(\"c\")])])",
        ),
        (
            recorded!("pool"),
            "ValueError: bad item 1\nat /home/user/pool.py:2 in f: def f(i): raise \
             ValueError(f\"bad item {i}\")",
        ),
        (
            recorded!("futures"),
            "ValueError: bad item 1\nat /home/user/fut.py:2 in f: def f(i): raise \
             ValueError(f\"bad item {i}\")",
        ),
    ] {
        assert_eq!(written(text), expected);
        assert_eq!(error_summary(text).to_string(), expected);
    }
}

#[test]
fn messages_with_the_traceback_of_another_process_show_what_that_one_raised() {
    let sample = "ValueError: Caught ValueError in DataLoader worker process 0.\nValueError: sample 3 \
                  is broken: cats/17.png\nat /home/user/loader.py:5 in __getitem__: if i == 3: raise \
                  ValueError(f\"sample {i} is broken: cats/17.png\")";
    assert_eq!(written(recorded!("data_loader")), sample);
    assert_eq!(error_summary(recorded!("data_loader")).to_string(), sample);
    let child = "ValueError: boom in a child\nat /home/user/spawn.py:2 in f: def f(i): raise \
                 ValueError(\"boom in a child\")";
    assert_eq!(written(recorded!("spawn")), child);
    let whole = "ProcessRaisedException\n-- Process 0 terminated with the following error:\n";
    assert_eq!(error_summary(recorded!("spawn")).to_string(), format!("{whole}{child}"));
}

#[test]
fn errors_in_graphs_are_shown_with_the_failed_node() {
    for (text, expected) in [
        (
            recorded!("tf_matmul"),
            "InvalidArgumentError: Graph execution error:\nDetected at node MatMul\nMatrix \
             size-incompatible: In[0]: [2,3], In[1]: [2,3]\nat /home/user/tfmat.py:4 in f",
        ),
        (
            recorded!("tf_assert"),
            "InvalidArgumentError: Graph execution error:\nDetected at node \
             assert_positive/assert_less/Assert/AssertGuard/Assert\nassertion failed: [loss must be \
             positive.  ] [Condition x > 0 did not hold element-wise:] [x (x:0) = ] [-1]\nat \
             /home/user/tferr.py:4 in f",
        ),
        (
            recorded!("keras"),
            "InvalidArgumentError: Graph execution error:\nDetected at node \
             sequential_1/embedding_1/GatherV2\nindices[0,0] = 99 is not in [0, 10)\nat \
             /home/user/keras_.py:4",
        ),
        (
            recorded!("tf_data"),
            "ValueError: sample 3 is broken\nat /home/user/tfdata.py:3 in g: if int(i) == 3: raise \
             ValueError(\"sample 3 is broken\")",
        ),
        (
            recorded!("jax_callback"),
            "jax.errors.JaxRuntimeError: INTERNAL: CpuCallback error calling callback\nValueError: \
             callback failed on row 3\nat /home/user/jaxcb.py:2 in cb",
        ),
        (
            recorded!("jax_nan"),
            "FloatingPointError: invalid value (nan) encountered in log\nat /home/user/jaxnan.py:4 in \
             f: def f(x): return jnp.log(x)",
        ),
        (
            recorded!("jax_trace"),
            "jax.errors.TracerBoolConversionError: Attempted boolean conversion of traced array with \
             shape bool[].\nThe error occurred while tracing the function f at \
             /home/user/jaxtrace.py:2 for jit. This concrete value was not available in Python \
             because it depends on the value of the argument x.\nSee \
             https://docs.jax.dev/en/latest/errors.html#jax.errors.TracerBoolConversionError\nat \
             /home/user/jaxtrace.py:4 in f: if x > 0: return x",
        ),
    ] {
        assert_eq!(written(text), expected);
    }
}

#[test]
fn crashes_of_native_code_are_shown_with_their_message() {
    let cpp = "starting\nterminate called after throwing an instance of 'std::runtime_error'\n  \
               what():  cannot map the dataset";
    let rust = "thread 'main' (8650) panicked at src/read.rs:1:53:\nindex out of bounds: the len is 0 \
                but the index is 3\nnote: run with `RUST_BACKTRACE=1` environment variable to display \
                a backtrace";
    for (text, signal, expected) in [
        (
            cpp,
            6,
            &[
                "terminate called after throwing an instance of 'std::runtime_error'",
                "what():  cannot map the dataset",
            ][..],
        ),
        (
            rust,
            6,
            &[
                "thread 'main' (8650) panicked at src/read.rs:1:53:",
                "index out of bounds: the len is 0 but the index is 3",
                "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
            ],
        ),
        (
            recorded!("segfault"),
            11,
            &["Fatal Python error: Segmentation fault", "at /home/user/abrt.py:3"],
        ),
        (
            recorded!("fatal_error"),
            6,
            &["Fatal Python error: something is rotten", "at /home/user/fatal.py:2"],
        ),
        ("free(): invalid pointer", 6, &["free(): invalid pointer"]),
        ("one line", 7, &["its last line on stderr: one line"]),
        ("", 9, &[]),
    ] {
        let cause = Cause::of(Some(&Exit::Signal(signal)), &Departure::None, &tail(text));
        assert_eq!(cause.details, expected);
        assert!(cause.what.starts_with("was killed by signal ") && !cause.raised());
    }
}

#[test]
fn a_text_given_to_exit_is_shown_whole() {
    let cause = Cause::of(Some(&Exit::Code(1)), &Departure::InOrder, &tail(recorded!("exit_text")));
    let lines = ["its last lines on stderr:", "the dataset is missing", "run ./download.sh first"];
    assert_eq!(
        (cause.what.as_str(), cause.details.as_slice()),
        ("exited with code 1", &lines.map(str::to_owned)[..])
    );
}

#[test]
fn what_the_rank_itself_reports_takes_precedence() {
    let text = recorded!("subprocess").to_owned() + "its stderr: cannot open port\n";
    let reported = Departure::Exception(Raised::by_program(text));
    let cause = Cause::of(Some(&Exit::Code(1)), &reported, &tail("unrelated"));
    assert!(cause.what.starts_with("raised subprocess.CalledProcessError: Command '['sh', "));
    assert_eq!(cause.details[0], "its stderr: cannot open port");
}

#[test]
fn after_an_orderly_departure_a_traceback_counts_only_if_it_comes_last() {
    let late = tail(recorded!("key_error"));
    let cause = Cause::of(Some(&Exit::Code(1)), &Departure::InOrder, &late);
    assert_eq!(cause.what, "raised KeyError: 'batch_size'");
    let logged = tail(&(recorded!("key_error").to_owned() + "giving up\n"));
    let cause = Cause::of(Some(&Exit::Code(1)), &Departure::InOrder, &logged);
    assert_eq!((cause.what.as_str(), cause.raised()), ("exited with code 1", false));
    assert_eq!(cause.details.last().unwrap(), "giving up");
}

#[test]
fn the_kind_of_an_exception_is_what_the_rank_reports() {
    let of = |kind| {
        let text = "HorovodInternalError: late\nMissing ranks:\n0: [x]".into();
        let reported = Departure::of(Some(Raised { text, kind }));
        Cause::of(Some(&Exit::Code(1)), &reported, &Tail::default()).kind
    };
    assert_eq!(of(CauseKind::Stalled), CauseKind::Stalled);
    assert_eq!(of(CauseKind::Exception), CauseKind::Exception);
}

#[test]
fn the_reference_page_lists_every_kind_once() {
    let page = include_str!("../../../../docs/reference/errors.md");
    let (_, table) = page.split_once("| `cause` | what happened |").unwrap();
    let rows = table.split("\n## ").next().unwrap().lines();
    let names: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let kinds = (0..).map_while(|number: u8| crate::wire::decode::<CauseKind>(&[number]).ok());
    let known: Vec<String> = kinds.map(|kind| kind.to_string()).collect();
    assert_eq!(names, known);
}

#[test]
fn long_messages_keep_their_beginning_and_their_end() {
    let text = (0..100).map(|n| format!("field {n}\n  Input should be a valid integer\n"));
    let text = format!("ValidationError: 100 errors\n{}", text.collect::<String>());
    let ErrorSummary { headline, details } = error_summary(&text);
    assert_eq!((headline.as_str(), details.len()), ("ValidationError: 100 errors", LINES));
    assert_eq!((details[0].as_str(), details[2].as_str()), ("field 0", "field 1"));
    assert!(details.iter().any(|line| line.starts_with("… (")), "{details:?}");
    assert_eq!(details[LINES - 2..], ["field 99", "Input should be a valid integer"]);
}

#[test]
fn colors_and_control_characters_do_not_reach_the_screen() {
    let text = "\u{1b}[31mValueError\u{1b}[0m: a\u{7}b";
    assert_eq!(error_summary(text).headline, "ValueError: a\\u{7}b");
}

const FRAGMENTS: &[&str] = &[
    "Traceback (most recent call last):",
    "Original Traceback (most recent call last):",
    "  + Exception Group Traceback (most recent call last):",
    "  +-+---------------- 1 ----------------",
    "    | ValueError: a",
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
    "  File \"x.py\", line 3, in f",
    "  File \"x.py\", line ",
    "    code()",
    "    ^^^^^^",
    "a.b.c.d.Error: text",
    "a.b.c.d.Error:",
    "KeyError: 'x'",
    "  note",
    "… (3 more lines)",
    "",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_summary_is_bounded_and_its_own_summary(
        picks in prop::collection::vec((0..FRAGMENTS.len(), ".{0,450}"), 0..30),
    ) {
        let lines = picks.iter().flat_map(|(pick, noise)| [FRAGMENTS[*pick], noise.as_str()]);
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        let once = error_summary(&text);
        prop_assert!(once.details.len() <= LINES, "{once:?}");
        let widest = once.details.iter().chain([&once.headline]).map(|line| line.chars().count());
        prop_assert!(widest.max().unwrap_or(0) <= WIDTH + 1, "{once:?}");
        prop_assert_eq!(error_summary(&once.to_string()), once);
        let tail = tail(&text);
        let cause = Cause::of(Some(&Exit::Code(1)), &Departure::None, &tail);
        prop_assert!(cause.details.len() <= LINES);
    }
}
