//! Limits that bite.

use super::Wall;

/// Each limit alone.
pub fn test(wall: Wall) {
    let ground = wall.shared();
    let sloplet = ground.root();

    let greedy = "import time\nall=[]\nfor i in range(64):\n  all.append(b'x'*(16<<20))\nprint('never')";
    let ended = wall.python(&sloplet, &["--memory", "256MiB", "--disk", "32MiB"], greedy);
    assert!(ended.code == 137 && !ended.out().contains("never"), "{ended}");

    let forks = "import os,time\nn=0\ntry:\n  for i in range(400):\n    if os.fork()==0:\n      time.sleep(20); os._exit(0)\n    n+=1\n\
        except OSError as e: pass\nprint(n, flush=True); os._exit(0)";
    let ended = wall.python(&sloplet, &["--pids", "40"], forks);
    let made: u32 = ended.word().parse().unwrap_or(u32::MAX);
    assert!((20..40).contains(&made), "{ended}");

    let fill = "import errno\ntry:\n  f=open('/home/user/big','wb')\n  for i in range(64): f.write(b'x'*(1<<20)); f.flush()\n  print('never')\n\
        except OSError as e: print(errno.errorcode[e.errno])";
    let options = ["--memory", "256MiB", "--disk", "24MiB"];
    for place in ["/home/user/big", "/tmp/big"] {
        let ended = wall.python(&sloplet, &options, &fill.replace("/home/user/big", place)).expect_code(0);
        assert_eq!(ended.word(), "ENOSPC", "{place}: {ended}");
    }

    let ended = wall.run(&sloplet, &["--timeout", "3s"], &["sleep", "1000"]).expect_code(124);
    assert!(ended.took.as_secs() < 300, "{ended}");

    let ended = wall.run(&sloplet, &["--output-limit", "1MiB"], &["head", "-c", "3000000", "/dev/zero"]);
    assert!(ended.stdout_bytes <= 1 << 20 && ended.stderr.contains("--output-limit"), "{} bytes", ended.stdout_bytes);
}
