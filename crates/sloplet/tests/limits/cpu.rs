//! `--cpus`

use crate::common::Host;

/// Two processes that count for a second of wall clock, then say how much processor time they got.
const BUSY: &str = "
import os, time
read, write = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        end = time.monotonic() + 1
        while time.monotonic() < end: pass
        os.write(write, f'{time.process_time()}\\n'.encode())
        os._exit(0)
for _ in range(2): os.wait()
print(sum(float(line) for line in os.read(read, 1000).split()))
";

#[test]
fn processors_are_shared_out_by_the_limit() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let used = |cpus: &str| -> f64 {
            let ended = sloplet.python(&["--cpus", cpus], BUSY).expect_code(0);
            ended.word().parse().unwrap_or_else(|_| panic!("{ended}"))
        };
        let (little, whole) = (used("0.5"), used("2"));
        assert!((0.2..=0.7).contains(&little), "{}: half a processor gave {little} s in 1 s", sloplet.name);
        assert!(whole > little * 1.3, "{}: two processors gave {whole} s, half of one {little} s", sloplet.name);
    }
}
