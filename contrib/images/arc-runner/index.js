'use strict';

// What the runner starts as its hook: container-hook, with everything that this process was given.
//
// The runner has its own node run hooks that end in `.js`, and node cannot become another program. So
// the program is a child that has the same standard streams, gets the signals that this process gets,
// and is killed with it, for which it is told who its parent is. This process ends as the program does.

const { spawn } = require('node:child_process');

const PROGRAM = '/usr/local/bin/container-hook';

// The runner sends SIGINT and then SIGTERM to this process alone; the others come from people.
const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM'];

function fail(error) {
  console.log(`::error::cannot start ${PROGRAM}: ${error.message}`);
  process.exit(1);
}

let program;
// Before the program is started: none gets lost, and the handlers run after that at the earliest.
for (const signal of SIGNALS) {
  process.on(signal, () => program.kill(signal));
}
try {
  program = spawn(PROGRAM, ['as-child', String(process.pid)], { stdio: 'inherit' });
} catch (error) {
  fail(error);
}
program.on('error', fail);
program.on('exit', (code, signal) => {
  if (signal === null) {
    process.exit(code);
  }
  // Without handlers a signal does what it did to the program.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
