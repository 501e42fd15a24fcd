//! Sandboxes that one spawner makes in a row: from the third on they start from a mount namespace with nothing in it.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::common::Host;
use crate::engine::Engine;

/// The old way out of a changed root, for whoever may change it; what is at the top then.
const CLIMB: &str = r#"exec python3 -c "
import os
top = os.open('/', os.O_RDONLY)
os.makedirs('/tmp/deep', exist_ok=True)
os.chroot('/tmp/deep')
os.fchdir(top)
for _ in range(100): os.chdir('..')
os.chroot('.')
print(*sorted(os.listdir('/')))
" "#;

#[test]
fn later_sandboxes_see_what_the_first_one_sees_and_nothing_below_it() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let mut engine = Engine::start(&host, &sloplet);
        let ids = ["first", "second", "third", "fourth"];
        for id in ids {
            engine.create(id, "host");
            sleep(Duration::from_millis(100)); // for the spawner to get ready for the next
        }
        // Mounts without their numbers, and without options that name ids.
        let mut mounts = |id: &str| -> Vec<String> {
            let table = engine.sh(id, "cat /proc/self/mountinfo");
            table.lines().map(|line| line.split(' ').skip(3).take(3).collect::<Vec<_>>().join(" ")).collect()
        };
        let first = mounts("first");
        assert!(first.len() > 5, "{first:?}");
        assert_eq!(mounts("fourth"), first);
        if sloplet.name == "root" {
            let expected = engine.sh("fourth", "LC_ALL=C ls -aA / | tr '\\n' ' '");
            let climbed = engine.ask(json!({ "do": "exec", "id": "fourth", "script": CLIMB, "user": "root" }));
            assert_eq!(climbed["code"], 0, "{climbed}");
            assert_eq!(climbed["out"].as_str().unwrap().trim_end(), expected.trim_end());
        }
        ids.iter().for_each(|id| engine.destroy(id));
        engine.end();
    }
}
