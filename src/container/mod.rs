//! Containers: create, start, exec, logs, health, kill, delete; records that survive any crash.
