//! The command as a user types it, verb by verb: one program, since each that is linked costs as much as its tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod common;

mod advice;
mod bad_input;
mod bad_sectors;
mod cached;
mod chcp;
mod check;
mod clean;
mod cleanerd_conf;
mod damage;
mod du;
mod dumpseg;
mod fallocate;
mod fixed;
mod fsck;
mod full_host;
mod full_output;
mod gone;
mod help;
mod install;
mod lab;
mod lost;
mod lscp;
mod lssu;
mod map;
mod mkcp;
mod mkfs;
mod mount;
mod names_in_json;
mod overwrite;
mod permissions;
mod repair;
mod rescue;
mod resize;
mod retain;
mod rmcp;
mod scrub;
mod stacked;
mod status;
mod sync;
mod terminal;
mod times;
mod trim;
mod tune;
mod typed;
mod umount;
mod wedged;
