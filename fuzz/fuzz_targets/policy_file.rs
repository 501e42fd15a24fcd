//! sloplet.toml of a folder somebody else wrote: read or refused, and what it loosens is told.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["[sandbox]", "[network]", "[secrets.K]", "[budget]", "[protect]", "[data]", "memory = ", "from = \"command\"", "command = [\"id\"]", "hosts = [", "1e9", "\"\"\""], longest: 2048 };

fn run(bytes: &[u8]) {
    parsed(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["[sandbox]\nimage = \"base\"\nmemory = \"64MiB\"\ncpus = 0.5\ntimeout = \"1m30s\"\nmounts = [\".:/w:rw\"]\nenv = [\"A=1\"]\n[network]\nallow = [\"*.a.test:443\"]\ndeny = [\"10.0.0.0/8\"]\n[secrets.K]\nhosts = [\"a.test\"]\nfrom = \"env\"\n[budget]\nusd = \"1.50\"\n[protect]\nhosts = [\"x\"]\n[data]\nmounts = []\n"])
}

fn parsed(text: &str) {
    if let Ok(file) = sloplet_policy::file::File::parse(text) {
        let loosened = sloplet_policy::untrusted::loosened(&file);
        assert_eq!(loosened, sloplet_policy::untrusted::loosened(&file.clone()));
        for (name, table) in file.secrets {
            assert!(!loosened.is_empty(), "a secret that loosens nothing");
            let _ = table.rule(&name);
        }
        let _ = (file.network.check(), file.budget.check());
        for mount in &file.sandbox.mounts {
            let _ = mount.bind().map(|bind| bind.check());
        }
    }
}
