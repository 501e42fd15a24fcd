//! Rows in every format that masking reads. The first byte chooses the format.

use sloplet_mask::formats::{csv, json, sql};
use sloplet_mask::{Config, Key};

use crate::Target;

pub const TARGET: Target = Target {
    run,
    seeds,
    words: &["INSERT INTO t (a, b) VALUES (", "COPY t (a, b) FROM stdin;\n", "\\.\n", "CREATE TABLE t (", "NULL", "E'", "\"a\":", "a,b\n", "\"\""],
    longest: 1024,
};

const RULES: &str = "[table.t]\na = \"keep\"\nb = \"email\"\n\"*\" = \"keep\"\n";
const REAL: &str = "jane.doe.4711@example.org";

fn run(bytes: &[u8]) {
    let Some((format, rows)) = bytes.split_first() else { return };
    thread_local! {
        static RULES_READ: Option<Config> = Config::parse(RULES).ok();
    }
    RULES_READ.with(|config| {
        let Some(config) = config else { panic!("the rules of this target are not read") };
        let (Some(table), key) = (config.table("t"), Key::from_seed(7)) else { return };
        let mut out = Vec::new();
        let done = match format % 4 {
            0 => csv::mask(rows, &mut out, table, &key, None, 1).is_ok(),
            1 => json::mask(rows, &mut out, table, &key).is_ok(),
            2 => json::mask_lines(rows, &mut out, table, &key, 1).is_ok(),
            _ => sql::mask(rows, &mut out, config, &key).is_ok(),
        };
        let _ = done;
    });
}

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        (0, format!("a,b\n1,{REAL}\n\"2\",\"x\"\"y\"\r\n")),
        (0, format!("a;b\n1;{REAL}\n")),
        (1, format!("[{{\"a\":1,\"b\":\"{REAL}\"}},{{\"a\":null,\"b\":1e400}}]")),
        (2, format!("{{\"a\":1,\"b\":\"{REAL}\"}}\n{{\"a\":{{\"c\":[1]}},\"b\":2}}\n")),
        (3, format!("INSERT INTO t (a, b) VALUES (1, '{REAL}'), (2, E'x\\n''y');\n")),
        (3, format!("COPY public.t (a, b) FROM stdin;\n1\t{REAL}\n\\N\t\\\\x\n\\.\n")),
        (3, format!("CREATE TABLE `t` (`a` int, `b` text);\nINSERT INTO `t` VALUES (1,\"{REAL}\"),(0x4142,_binary 'x');\n")),
    ];
    texts.map(|(format, text)| [&[format], text.as_bytes()].concat()).to_vec()
}
