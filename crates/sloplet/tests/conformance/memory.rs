//! Snapshots with memory, or a clear refusal.

use super::Wall;
use super::common::Server;

/// Processes go on from where they were saved, each copy for itself.
pub fn test(wall: Wall) {
    let ground = wall.shared();
    let sloplet = ground.root();
    let server = Server::start(&sloplet);
    let ok = |words: &[&str]| server.command(words).expect_code(0).out();
    ok(&wall.creation(&["--name", "one"]));
    if !wall.memory_snapshots {
        server
            .command(&["snapshot", "--memory", "one", "warm"])
            .expect_code(125)
            .expect_said("cannot take snapshots with memory");
        assert_eq!(server.json(&["snapshot", "ls"]).as_array().map(Vec::len), Some(0));
        ok(&["exec", "one", "--", "true"]);
        return server.end_with_its_sandboxes();
    }
    // A number that is in memory only, told on request.
    let program = "import os,time\nsecret=os.urandom(8).hex(); n=0\nopen('/home/user/made','w').write(secret)\nwhile True:\n  n+=1\n  \
        f=open('/home/user/now.new','w'); f.write(f'{secret} {n} {os.getpid()}'); f.close(); os.rename('/home/user/now.new','/home/user/now'); time.sleep(0.02)";
    ok(&["exec", "-d", "one", "--", "python3", "-c", program]);
    let now = |name: &str| {
        let text = ok(&["exec", name, "--", "cat", "/home/user/now"]);
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        (words[0].clone(), words[1].parse::<u64>().unwrap(), words[2].clone())
    };
    let started = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        server.command(&["exec", "one", "--", "test", "-e", "/home/user/now"]).code == 0
    });
    assert!(started);
    let before = now("one");
    let saved = server.json(&["snapshot", "--memory", "one", "warm"]);
    assert!(saved["memory_bytes"].as_u64() > Some(0) && saved["driver"] == wall.name, "{saved}");
    let later = |name: &str, than: u64| {
        (0..100).map(|_| now(name)).find(|(_, count, _)| *count > than).unwrap_or_else(|| panic!("{name} stands still"))
    };
    let original = later("one", before.1);
    assert_eq!((&original.0, &original.2), (&before.0, &before.2), "the original goes on");
    let forked = server.json(&["fork", "--from", "warm", "-n", "2", "--name", "copy"]);
    assert_eq!(forked["sandboxes"].as_array().map(Vec::len), Some(2), "{forked}");
    for name in ["copy-1", "copy-2"] {
        let copy = later(name, before.1);
        assert_eq!((&copy.0, &copy.2), (&before.0, &before.2), "{name} has the same process with the same memory");
        // Found again as a process of the sandbox's, so that it can be ended.
        assert!(ok(&["ps", name]).contains("python3"));
    }
    // Another wall cannot go on from it.
    let refused = server.ask("POST", "/snapshots/warm/fork", Some(serde_json::json!({"count": 1000})));
    assert_eq!(refused.status, 400, "{}", refused.text());
    ok(&["snapshot", "rm", "warm"]);
    assert_eq!(std::fs::read_dir(sloplet.data.join("memory")).unwrap().count(), 0, "the memory went with the snapshot");
    server.end_with_its_sandboxes();
}
