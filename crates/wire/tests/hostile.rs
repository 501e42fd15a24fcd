//! Both directions of the protocol against arbitrary, mutated, and differently versioned bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use sloplet_wire::flow::INITIAL_WINDOW;
use sloplet_wire::frame::encode;
use sloplet_wire::message::{from_bytes, to_bytes};
use sloplet_wire::*;

// ---- valid messages ----

fn bytes() -> impl Strategy<Value = ByteVec> {
    vec(any::<u8>(), 0..40).prop_map(ByteVec::from)
}

fn text() -> impl Strategy<Value = String> {
    ".{0,20}"
}

fn size() -> impl Strategy<Value = TerminalSize> {
    any::<(u16, u16)>().prop_map(|(columns, rows)| TerminalSize { columns, rows })
}

fn target() -> impl Strategy<Value = Target> {
    (bytes(), option::of(text()), any::<bool>()).prop_map(|(path, user, privileged)| Target { path, user, privileged })
}

fn exec() -> impl Strategy<Value = Exec> {
    let first = (vec(bytes(), 0..5), vec(bytes(), 0..5), option::of(bytes()), option::of(text()), option::of(size()));
    let builtin = option::of(prop_oneof![Just(Builtin::Shell), Just(Builtin::Sftp), Just(Builtin::Connect)]);
    let rest = (any::<bool>(), any::<Option<u64>>(), any::<bool>(), option::of(text()), builtin);
    (first, rest).prop_map(|((argv, env, cwd, user, terminal), (stdin, timeout_ms, background, tag, builtin))| Exec {
        argv,
        env,
        cwd,
        user,
        terminal,
        stdin,
        timeout_ms,
        background,
        tag,
        builtin,
    })
}

fn request() -> impl Strategy<Value = Request> {
    let (id, flag, mode) = (any::<u32>(), any::<bool>(), any::<u32>());
    prop_oneof![
        exec().prop_map(Request::Exec),
        id.prop_map(|pid| Request::Attach { pid }),
        (id, any::<i32>(), flag).prop_map(|(pid, signal, group)| Request::Signal { pid, signal, group }),
        (id, size()).prop_map(|(pid, size)| Request::Resize { pid, size }),
        (id, bytes(), flag).prop_map(|(pid, data, end)| Request::SendInput { pid, data, end }),
        Just(Request::Processes),
        target().prop_map(Request::Stat),
        (target(), id).prop_map(|(target, depth)| Request::List { target, depth }),
        (target(), mode, flag).prop_map(|(target, mode, parents)| Request::MakeDir { target, mode, parents }),
        (target(), bytes()).prop_map(|(from, to)| Request::Move { from, to }),
        (target(), flag).prop_map(|(target, recursive)| Request::Remove { target, recursive }),
        (target(), mode).prop_map(|(target, mode)| Request::SetMode { target, mode }),
        (target(), any::<u64>(), any::<Option<u64>>()).prop_map(|(target, offset, length)| Request::Read {
            target,
            offset,
            length
        }),
        (target(), mode, flag, vec(attribute(), 0..3))
            .prop_map(|(target, mode, parents, attributes)| { Request::Write { target, mode, parents, attributes } }),
        (target(), flag).prop_map(|(target, recursive)| Request::Watch { target, recursive }),
        target().prop_map(Request::Pack),
        target().prop_map(Request::Unpack),
        any::<u16>().prop_map(|port| Request::Dial { port }),
        any::<u16>().prop_map(|port| Request::Listen { port }),
        any::<u16>().prop_map(|port| Request::Accept { port }),
        Just(Request::FilterCommands),
        target().prop_map(Request::ListenAt),
        target().prop_map(Request::AcceptAt),
    ]
}

fn attribute() -> impl Strategy<Value = Attribute> {
    (bytes(), bytes()).prop_map(|(name, value)| Attribute { name, value })
}

fn kind() -> impl Strategy<Value = FileKind> {
    use FileKind::*;
    prop_oneof![Just(File), Just(Directory), Just(Symlink), Just(Other)]
}

fn rare() -> impl Strategy<Value = Box<Rare>> {
    let end = (bytes(), kind(), any::<u32>()).prop_map(|(path, kind, mode)| LinkEnd { path, kind, mode });
    (option::of(end), vec(attribute(), 0..3)).prop_map(|(end, attributes)| Box::new(Rare { end, attributes }))
}

fn entry() -> impl Strategy<Value = Entry> {
    let first = (bytes(), kind(), any::<u64>(), any::<u32>(), any::<u32>(), option::of(rare()));
    let rest = (any::<u32>(), any::<i64>(), option::of(bytes()), option::of(text()), option::of(text()));
    (first, rest).prop_map(|((path, kind, size, mode, uid, rare), (gid, modified_ns, link_target, owner, group))| {
        Entry { path, kind, size, mode, uid, gid, modified_ns, link_target, owner, group, rare }
    })
}

fn process() -> impl Strategy<Value = ProcessInfo> {
    let first = (any::<u32>(), any::<u32>(), bytes(), any::<u32>(), any::<bool>());
    let rest = (option::of(text()), any::<u64>(), any::<u64>(), any::<bool>());
    (first, rest).prop_map(|((pid, parent, command, uid, managed), (tag, rss_kib, cpu_us, terminal))| ProcessInfo {
        pid,
        parent,
        command,
        uid,
        managed,
        tag,
        rss_kib,
        cpu_us,
        terminal,
    })
}

fn failure() -> impl Strategy<Value = Failure> {
    use ErrorCode::*;
    let code = proptest::sample::select(vec![
        Unsupported,
        Invalid,
        NotFound,
        Exists,
        Denied,
        WrongType,
        Exhausted,
        Refused,
        Io,
        NoUser,
    ]);
    (code, text()).prop_map(|(code, message)| Failure { code, message })
}

fn change() -> impl Strategy<Value = Change> {
    use ChangeKind::*;
    let kind = proptest::sample::select(vec![Create, Write, Remove, Rename, Attributes, Overflow]);
    (kind, bytes()).prop_map(|(kind, path)| Change { kind, path })
}

fn exit() -> impl Strategy<Value = Exit> {
    any::<(Option<i32>, Option<i32>, bool, u64, u64)>().prop_map(|(code, signal, timed_out, cpu_us, max_rss_kib)| {
        Exit { code, signal, timed_out, cpu_us, max_rss_kib }
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Done),
        failure().prop_map(Event::Failed),
        any::<u32>().prop_map(|pid| Event::Started { pid, held: None }),
        exit().prop_map(Event::Exited),
        vec(process(), 0..4).prop_map(Event::Processes),
        entry().prop_map(Event::Entry),
        vec(entry(), 0..4).prop_map(Event::Entries),
        change().prop_map(Event::Change),
        any::<u16>().prop_map(|port| Event::Listening { port }),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<u16>(), text(), any::<Option<u32>>()).prop_map(|(version, build, longest_request)| Hello {
        version,
        build,
        longest_request,
    })
}

fn fatal() -> impl Strategy<Value = Fatal> {
    (text(), any::<i32>(), text()).prop_map(|(step, errno, detail)| Fatal { step, errno, detail })
}

/// A frame as one of the two sides sends it.
fn frame() -> impl Strategy<Value = (Kind, u32, u8, Vec<u8>)> {
    let payload = prop_oneof![
        hello().prop_map(|message| (Kind::Hello, to_bytes(&message))),
        fatal().prop_map(|message| (Kind::Fatal, to_bytes(&message))),
        request().prop_map(|message| (Kind::Request, to_bytes(&message))),
        event().prop_map(|message| (Kind::Event, to_bytes(&message))),
        vec(any::<u8>(), 0..300).prop_map(|data| (Kind::Data, data)),
        any::<u32>().prop_map(|credit| (Kind::Window, credit.to_le_bytes().to_vec())),
        Just((Kind::End, Vec::new())),
        Just((Kind::Reset, Vec::new())),
        any::<u64>().prop_map(|number| (Kind::Ping, number.to_le_bytes().to_vec())),
        any::<u64>().prop_map(|number| (Kind::Pong, number.to_le_bytes().to_vec())),
    ];
    (payload, any::<u32>(), any::<u8>()).prop_map(|((kind, payload), stream, channel)| (kind, stream, channel, payload))
}

// ---- damage ----

#[derive(Debug, Clone)]
enum Damage {
    Set(prop::sample::Index, u8),
    Flip(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
    Truncate(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (at(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        at().prop_map(Damage::Remove),
        (at(), vec(any::<u8>(), 1..10)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        at().prop_map(Damage::Truncate),
        (at(), at()).prop_map(|(from, to)| Damage::Repeat(from, to)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match damage {
        Damage::Set(at, byte) => bytes[at.index(len)] = *byte,
        Damage::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
        Damage::Remove(at) => drop(bytes.remove(at.index(len))),
        Damage::Insert(at, new) => drop(bytes.splice(at.index(len)..at.index(len), new.iter().copied())),
        Damage::Truncate(at) => bytes.truncate(at.index(len)),
        Damage::Repeat(from, to) => {
            let (from, to) = (from.index(len).min(to.index(len)), from.index(len).max(to.index(len)));
            bytes.extend_from_within(from..to);
        }
    }
}

// ---- oracles ----

/// Decoding either fails or gives a message that survives being sent on: nothing half-understood.
fn stable<T: for<'b> Decode<'b, ()> + Encode<()> + PartialEq + std::fmt::Debug>(payload: &[u8]) {
    if let Ok(message) = from_bytes::<T>(payload, "message") {
        assert_eq!(from_bytes::<T>(&to_bytes(&message), "message").as_ref(), Ok(&message));
    }
}

fn feed_all_decoders(payload: &[u8]) {
    stable::<Hello>(payload);
    stable::<Fatal>(payload);
    stable::<Request>(payload);
    stable::<Event>(payload);
}

type Frames = (Vec<(Header, Vec<u8>)>, Option<WireError>);

/// All frames up to the first error.
fn cut(pieces: &[&[u8]]) -> Frames {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.extend(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push((frame.header, frame.payload.to_vec())),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next_frame().unwrap_err(), error, "an error must not be skipped");
                    return (frames, Some(error));
                }
            }
        }
        decoder.shrink();
    }
    (frames, None)
}

/// Cuts `bytes` in one piece and in many; both must give the same, and the frames must be made of the bytes.
fn cut_both_ways(bytes: &[u8], lengths: &[usize]) -> Frames {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    for length in lengths {
        let (piece, after) = rest.split_at((*length).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    let whole = cut(&[bytes]);
    assert_eq!(cut(&pieces), whole);
    let mut at = 0;
    for (header, payload) in &whole.0 {
        assert!(payload.len() <= MAX_PAYLOAD);
        // All but the two bytes that are reserved.
        assert_eq!(header.to_bytes()[..10], bytes[at..at + 10]);
        assert_eq!(payload, &bytes[at + HEADER_LEN..at + HEADER_LEN + payload.len()]);
        at += HEADER_LEN + payload.len();
    }
    whole
}

/// Arbitrary but well-formed CBOR: gets further into the decoders than arbitrary bytes do.
fn cbor() -> impl Strategy<Value = Vec<u8>> {
    fn head(major: u8, n: u64) -> Vec<u8> {
        let mut out = Vec::new();
        minicbor::encode(n, &mut out).unwrap();
        out[0] |= major << 5;
        out
    }
    let number = prop_oneof![0u64..12, any::<u64>()];
    let leaf = prop_oneof![
        (0u8..2, number.clone()).prop_map(|(major, n)| head(major, n)),
        vec(any::<u8>(), 0..12).prop_map(|bytes| [head(2, bytes.len() as u64), bytes].concat()),
        ".{0,8}".prop_map(|text| [head(3, text.len() as u64), text.into_bytes()].concat()),
        prop_oneof![Just(0xf4u8), Just(0xf5), Just(0xf6), Just(0xf7), any::<u8>()].prop_map(|byte| vec![byte]),
        // Promises of content that does not come.
        (2u8..6, number).prop_map(|(major, n)| head(major, n)),
    ];
    leaf.prop_recursive(5, 80, 12, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..12).prop_map(|items| [head(4, items.len() as u64), items.concat()].concat()),
            // Request and event: a variant number and its fields.
            (0u64..20, vec(inner.clone(), 0..10)).prop_map(|(variant, items)| {
                [vec![0x82], head(0, variant), head(4, items.len() as u64), items.concat()].concat()
            }),
            vec(inner.clone(), 0..6).prop_map(|items| [vec![0x9f], items.concat(), vec![0xff]].concat()),
            vec((inner.clone(), inner), 0..4).prop_map(|pairs| {
                let items: Vec<u8> = pairs.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
                [head(5, pairs.len() as u64), items].concat()
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_cut_or_refused(bytes in vec(any::<u8>(), 0..2000), lengths in vec(0usize..100, 0..20)) {
        for (_, payload) in cut_both_ways(&bytes, &lengths).0 {
            feed_all_decoders(&payload);
        }
    }

    #[test]
    fn arbitrary_bytes_with_believable_headers_are_cut_or_refused(
        parts in vec((0u32..80, any::<u32>(), 0u8..11, any::<u8>(), vec(any::<u8>(), 0..80)), 0..20),
        lengths in vec(0usize..60, 0..40),
    ) {
        let mut bytes = Vec::new();
        for (len, stream, kind, channel, payload) in parts {
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&stream.to_le_bytes());
            bytes.extend_from_slice(&[kind, channel, 0, 0]);
            bytes.extend_from_slice(&payload);
        }
        for (_, payload) in cut_both_ways(&bytes, &lengths).0 {
            feed_all_decoders(&payload);
        }
    }

    #[test]
    fn damaged_streams_are_cut_or_refused(
        frames in vec(frame(), 1..8),
        damages in vec(damage(), 0..6),
        lengths in vec(0usize..200, 0..20),
    ) {
        let mut bytes = Vec::new();
        for (kind, stream, channel, payload) in &frames {
            encode(&mut bytes, *kind, *stream, *channel, payload);
        }
        let intact: Vec<_> = cut_both_ways(&bytes, &lengths).0.into_iter()
            .map(|(header, payload)| (header.kind, header.stream, header.channel, payload)).collect();
        prop_assert_eq!(intact, frames);
        for damage in &damages {
            apply(&mut bytes, damage);
        }
        for (_, payload) in cut_both_ways(&bytes, &lengths).0 {
            feed_all_decoders(&payload);
        }
    }

    #[test]
    fn damaged_messages_are_decoded_or_refused(
        message in prop_oneof![request().prop_map(|m| to_bytes(&m)), event().prop_map(|m| to_bytes(&m))],
        damages in vec(damage(), 1..4),
    ) {
        let mut bytes = message;
        for damage in &damages {
            apply(&mut bytes, damage);
            feed_all_decoders(&bytes);
        }
    }

    #[test]
    fn arbitrary_payloads_are_decoded_or_refused(payload in vec(any::<u8>(), 0..300)) {
        feed_all_decoders(&payload);
    }

    #[test]
    fn arbitrary_cbor_is_decoded_or_refused(payload in cbor()) {
        feed_all_decoders(&payload);
    }

    #[test]
    fn requests_survive_the_trip(message in request()) {
        prop_assert_eq!(from_bytes::<Request>(&to_bytes(&message), "request"), Ok(message));
    }

    #[test]
    fn events_survive_the_trip(message in event()) {
        prop_assert_eq!(from_bytes::<Event>(&to_bytes(&message), "event"), Ok(message));
    }

    #[test]
    fn greetings_survive_the_trip(hello in hello(), fatal in fatal()) {
        prop_assert_eq!(from_bytes::<Hello>(&to_bytes(&hello), "hello"), Ok(hello));
        prop_assert_eq!(from_bytes::<Fatal>(&to_bytes(&fatal), "fatal"), Ok(fatal));
    }

    #[test]
    fn a_truncated_message_is_never_taken_for_a_whole_one(message in event(), at in any::<prop::sample::Index>()) {
        let bytes = to_bytes(&message);
        prop_assert!(from_bytes::<Event>(&bytes[..at.index(bytes.len())], "event").is_err());
    }

    #[test]
    fn a_receiver_never_holds_more_than_its_window(steps in vec((0usize..=MAX_PAYLOAD, 0usize..=MAX_PAYLOAD), 0..60)) {
        let mut window = ReceiveWindow::default();
        let (mut held, mut credit) = (0usize, INITIAL_WINDOW as usize);
        for (arrives, taken) in steps {
            match window.receive(arrives) {
                Ok(()) => {
                    prop_assert!(arrives <= credit);
                    held += arrives;
                    credit -= arrives;
                }
                Err(error) => {
                    prop_assert_eq!(error, WireError::WindowOverrun((arrives - credit) as u64));
                    break;
                }
            }
            prop_assert!(held <= INITIAL_WINDOW as usize);
            let taken = taken.min(held);
            held -= taken;
            credit += window.release(taken).unwrap_or(0) as usize;
        }
    }

    #[test]
    fn a_sender_survives_any_grant(grants in vec(any::<u32>(), 0..20)) {
        let mut window = SendWindow::default();
        for grant in grants {
            let before = window.available();
            match window.grant(grant) {
                Ok(()) => prop_assert_eq!(window.available(), before + grant as usize),
                Err(error) => {
                    prop_assert_eq!(error, WireError::WindowOverflow);
                    prop_assert_eq!(window.available(), before);
                }
            }
        }
    }
}

// ---- other versions ----

/// Hand-made CBOR, in hexadecimal; spaces are for reading.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn process_exec() -> Exec {
    Exec { argv: vec![b"ls".to_vec().into()], stdin: true, ..Exec::default() }
}

#[test]
fn the_format_on_the_wire_does_not_change() {
    let exec = Request::Exec(process_exec());
    let fixed = [
        (to_bytes(&Hello { version: 1, build: "b".into(), longest_request: None }), "82 01 6162"),
        (to_bytes(&exec), "82 00 81 88 81426c73 80 f6 f6 f6 f5 f6 f4"),
        (to_bytes(&Request::Processes), "82 05 80"),
        (to_bytes(&Request::Dial { port: 80 }), "82 11 81 1850"),
        (to_bytes(&Request::FilterCommands), "82 14 80"),
        (to_bytes(&Event::Done), "82 00 80"),
        (to_bytes(&Event::Started { pid: 7, held: None }), "82 02 81 07"),
        (to_bytes(&Event::Failed(Failure { code: ErrorCode::NotFound, message: "x".into() })), "82 01 81 82 02 6178"),
    ];
    for (bytes, expected) in fixed {
        assert_eq!(bytes, hex(expected), "expected {expected}, got {bytes:02x?}");
    }
    let mut frame = Vec::new();
    encode(&mut frame, Kind::Window, 0x0102_0304, Channel::Error as u8, b"abcd");
    assert_eq!(frame, hex("04000000 04030201 05 02 0000 61626364"));
}

#[test]
fn fields_of_a_newer_peer_are_skipped() {
    // Each with more fields than this version knows: numbers, text, and nested things of every kind.
    let hello = from_bytes::<Hello>(&hex("85 01 6162 07 1903e8 a1 01 82 f5 9f 01 ff"), "hello");
    assert_eq!(hello, Ok(Hello { version: 1, build: "b".into(), longest_request: Some(7) }));
    let exec = "82 00 81 8c 81426c73 80 f6 f6 f6 f5 f6 f4 f6 f6  83 01 02 03  a1 61 78 fb 3ff0000000000000";
    assert_eq!(from_bytes::<Request>(&hex(exec), "request"), Ok(Request::Exec(process_exec())));
    let started = from_bytes::<Event>(&hex("82 02 84 07 f6 5f 4161 ff c1 1a 00000001"), "event");
    assert_eq!(started, Ok(Event::Started { pid: 7, held: None }));
    // A variant that had no fields and got some.
    assert_eq!(from_bytes::<Event>(&hex("82 00 82 01 6178"), "event"), Ok(Event::Done));
}

#[test]
fn optional_fields_that_an_older_peer_does_not_send_are_none() {
    // No `tag`, and nothing after `background`.
    let exec = from_bytes::<Request>(&hex("82 00 81 88 81426c73 80 f6 f6 f6 f5 f6 f4"), "request");
    assert_eq!(exec, Ok(Request::Exec(process_exec())));
    let hello = from_bytes::<Hello>(&hex("82 01 6162"), "hello");
    assert_eq!(hello, Ok(Hello { version: 1, build: "b".into(), longest_request: None }));
    // No user.
    let stat = from_bytes::<Request>(&hex("82 06 81 81 422f61"), "request");
    assert_eq!(stat, Ok(Request::Stat(Target { path: b"/a".to_vec().into(), ..Target::default() })));
    // No attributes.
    let write = from_bytes::<Request>(&hex("82 0d 83 81 422f61 1901a4 f5"), "request").unwrap();
    let Request::Write { attributes, parents: true, .. } = write else { panic!("{write:?}") };
    assert!(attributes.is_empty());
    // No link target, owner or group.
    let event = from_bytes::<Event>(&hex("82 05 81 87 422f61 00 05 1901a4 00 00 00"), "event").unwrap();
    let Event::Entry(entry) = event else { panic!("{event:?}") };
    assert_eq!((entry.size, entry.mode, entry.link_target, entry.owner, entry.group), (5, 0o644, None, None, None));
}

#[test]
fn a_missing_required_field_is_an_error_and_not_a_default() {
    assert_eq!(from_bytes::<Hello>(&hex("81 01"), "hello"), Err(WireError::Malformed("hello")));
    assert_eq!(from_bytes::<Event>(&hex("82 02 80"), "event"), Err(WireError::Malformed("event")));
    // `Exec` without `stdin` and what follows.
    let exec = from_bytes::<Request>(&hex("82 00 81 85 81426c73 80 f6 f6 f6"), "request");
    assert_eq!(exec, Err(WireError::Malformed("request")));
}

#[test]
fn what_only_a_newer_peer_knows_is_refused_and_not_mistaken() {
    assert_eq!(from_bytes::<Request>(&hex("82 1863 81 01"), "request"), Err(WireError::Malformed("request")));
    assert_eq!(from_bytes::<Event>(&hex("82 1863 80"), "event"), Err(WireError::Malformed("event")));
    let mut frame = Vec::new();
    encode(&mut frame, Kind::Pong, 0, 0, b"");
    frame[8] = 10;
    assert_eq!(cut(&[&frame]).1, Some(WireError::UnknownKind(10)));
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    // In a field that is skipped, in the place of a field that is decoded, and of definite and indefinite length.
    for opening in [&[0x81][..], &[0x9f], &[0xa1, 0x01], &[0xc1], &[0xbf, 0x01], &[0x5f]] {
        for prefix in ["83 01 6162", "82 05 81 81", "82 00 81 89 81", "82 06 81 9f", ""] {
            let mut payload = hex(prefix);
            while payload.len() + opening.len() <= MAX_PAYLOAD {
                payload.extend_from_slice(opening);
            }
            feed_all_decoders(&payload);
        }
    }
}

#[test]
fn an_impossible_signal_of_an_agent_does_not_overflow_the_exit_code() {
    let exit = Exit { signal: Some(i32::MAX), ..Exit::default() };
    assert_eq!(exit.shell_code(), i32::MAX);
    assert_eq!(Exit { signal: Some(9), ..Exit::default() }.shell_code(), 137);
}
