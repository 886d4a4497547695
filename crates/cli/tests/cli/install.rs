//! `silt install`

use crate::common::{Bench, Run, SILT};

use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn everything_is_put_in_place_below_a_prefix() {
    let b = Bench::new();
    let prefix = b.name("opt");
    b.ok(&["install", "--prefix", &prefix, "--nilfs-names"]);
    let file = |path: &str| b.path("opt").join(path);
    assert_eq!(std::fs::metadata(file("bin/silt")).unwrap().permissions().mode() & 0o777, 0o755);
    let page = std::fs::read_to_string(file("share/man/man1/silt-mount.1")).unwrap();
    assert!(
        page.contains("interval=SECONDS") && page.contains("MOUNT OPTIONS"),
        "the mount options are in the page"
    );
    let page = std::fs::read_to_string(file("share/man/man1/silt.1")).unwrap();
    assert!(page.contains("EXIT CODES"), "and the exit codes in the first");
    for path in [
        "share/man/man1/silt-lscp.1",
        "share/bash-completion/completions/silt",
        "share/zsh/site-functions/_silt",
        "share/fish/vendor_completions.d/silt.fish",
        "lib/systemd/user/silt.service",
    ] {
        assert!(std::fs::metadata(file(path)).unwrap().len() > 100, "{path}");
    }
    let unit = std::fs::read_to_string(file("lib/systemd/system/silt@.service")).unwrap();
    assert!(unit.contains(&format!("ExecStart={prefix}/bin/silt mount")), "{unit}");
    for (name, code) in [("bin/lscp", 0), ("sbin/mkfs.nilfs2", 0), ("sbin/mount.silt", 0)] {
        assert_eq!(std::fs::read_link(file(name)).unwrap(), file("bin/silt"), "{name}");
        assert_eq!(Run::of(&b.command(file(name)).arg("--help").output().unwrap()).code, code, "{name}");
    }
    // mount(8) and fsck(8) have the names that they are called by explained.
    for (page, what) in [
        ("man8/mount.silt.8", ".so man1/silt-mount.1\n"),
        ("man8/umount.silt.8", ".so man1/silt-umount.1\n"),
        ("man8/mkfs.nilfs2.8", ".so man1/silt-mkfs.1\n"),
        ("man1/lscp.1", ".so man1/silt-lscp.1\n"),
        ("man8/fsck.nilfs2.8", "not cleanly unmounted"),
        ("man1/silt-lab-torture.1", "block\\-size"),
        ("man1/silt-lab.1", "silt\\-lab\\-torture(1)"),
        ("man1/silt.1", "silt\\-mount(1)"),
    ] {
        let text = std::fs::read_to_string(file("share/man").join(page)).unwrap();
        assert!(text.contains(what), "{page}: {text}");
        // Each page that a page names is there.
        for named in text.lines().filter_map(|line| line.strip_suffix("(1)")) {
            let named = file("share/man/man1").join(format!("{}.1", named.replace('\\', "")));
            assert!(named.exists(), "{}", named.display());
        }
    }
    // Once more over itself, while it may be running.
    b.ok(&["install", "--prefix", &prefix, "--nilfs-names"]);
}

#[test]
fn what_belongs_to_others_is_left_alone() {
    let b = Bench::new();
    std::fs::create_dir_all(b.path("opt/bin")).unwrap();
    std::fs::write(b.path("opt/bin/lscp"), "theirs").unwrap();
    std::fs::create_dir_all(b.path("opt/share/man/man8")).unwrap();
    std::fs::write(b.path("opt/share/man/man8/mkfs.nilfs2.8"), ".TH \"theirs\"").unwrap();
    let run = b.run(&["install", "--prefix", &b.name("opt"), "--nilfs-names"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("lscp is there already"), "{}", run.err);
    assert_eq!(std::fs::read_to_string(b.path("opt/bin/lscp")).unwrap(), "theirs");
    let page = std::fs::read_to_string(b.path("opt/share/man/man8/mkfs.nilfs2.8")).unwrap();
    assert_eq!(page, ".TH \"theirs\"");
    assert!(run.err.contains("mkfs.nilfs2.8 is there already"), "{}", run.err);
}

#[test]
fn a_package_is_made_below_another_root() {
    let b = Bench::new();
    let said = b.ok(&["install", "--prefix", "/usr", "--destdir", &b.name("root")]);
    assert_eq!(said, format!("silt is installed in {}\n", b.name("root/usr")), "nothing is in /usr");
    let link = std::fs::read_link(b.path("root/usr/sbin/mount.silt")).unwrap();
    assert_eq!(link.to_str(), Some("/usr/bin/silt"));
    assert!(!b.path("root/usr/bin/lscp").exists(), "the old names only where asked for");
}

/// Without its helpers a volume is not mounted by fstab: that is no success.
#[test]
fn a_helper_that_is_not_ours_stays_and_is_a_failure() {
    let b = Bench::new();
    std::fs::create_dir_all(b.path("opt/sbin")).unwrap();
    std::fs::write(b.path("opt/sbin/mount.silt"), "theirs").unwrap();
    let run = b.run(&["install", "--prefix", &b.name("opt")]);
    assert!(run.code == 1 && run.err.contains("sbin/mount.silt is there already"), "{}", run.err);
    assert_eq!(std::fs::read_to_string(b.path("opt/sbin/mount.silt")).unwrap(), "theirs");
    assert!(b.path("opt/sbin/umount.silt").is_symlink() && b.path("opt/bin/silt").exists());
}

#[test]
fn a_program_of_that_name_that_is_another_one_stays() {
    let b = Bench::new();
    std::fs::create_dir_all(b.path("opt/bin")).unwrap();
    let program = b.path("opt/bin/silt");
    let refused = || {
        let said = b.fails(1, &["install", "--prefix", &b.name("opt")]);
        assert!(said.contains("nothing was installed") && !b.path("opt/sbin").exists(), "{said}");
    };
    std::fs::write(&program, "#!/bin/sh\necho theirs\n").unwrap();
    refused();
    assert!(std::fs::read_to_string(&program).unwrap().contains("theirs"));
    std::fs::remove_file(&program).unwrap();
    symlink("/bin/true", &program).unwrap();
    refused();
    assert_eq!(std::fs::read_link(&program).unwrap().to_str(), Some("/bin/true"));
    // A link to the program itself gives way to a file; what it leads to is not written to.
    std::fs::remove_file(&program).unwrap();
    symlink(SILT, &program).unwrap();
    b.ok(&["install", "--prefix", &b.name("opt")]);
    assert!(!program.is_symlink() && std::fs::metadata(SILT).unwrap().len() > 1 << 20);
}

/// An earlier version is known by a mark of its own, and not by what its help happens to say.
#[test]
fn another_version_gives_way() {
    let b = Bench::new();
    let program = b.path("opt/bin/silt");
    std::fs::create_dir_all(b.path("opt/bin")).unwrap();
    let mut other = std::fs::read(SILT).unwrap();
    let place = b"/var/lib/silt/default.img";
    let mut at = 0;
    while let Some(n) = other[at..].windows(place.len()).position(|part| part == place) {
        at += n;
        other[at + 5] = b'L';
    }
    assert!(at > 0);
    std::fs::write(&program, &other).unwrap();
    b.ok(&["install", "--prefix", &b.name("opt")]);
    assert!(std::fs::read(&program).unwrap() == std::fs::read(SILT).unwrap());
}
