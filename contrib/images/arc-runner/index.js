'use strict';

// The script that the runner calls as its hook: starts container-hook with the same standard streams.
//
// The runner runs hooks that end in `.js` with its own node, and node cannot execute another program in its
// place. So the program is a child. This process forwards signals to it and exits with
// its code; the child gets the parent's process id, so that the kernel kills it with this process.

const { spawn } = require('node:child_process');

const PROGRAM = '/usr/local/bin/container-hook';

// The runner sends SIGINT and then SIGTERM only to this process; users send the others.
const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM'];

function fail(error) {
  console.log(`::error::cannot start ${PROGRAM}: ${error.message}`);
  process.exit(1);
}

let program;
// Installed before the program starts, so that no signal is lost; handlers run only after the start.
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
  // Without handlers the signal ends this process like the program.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
