'use strict';

// A job as the runner has one run, in a pod or an instance: node job.js CONTAINER-HOOK LAYOUT [RUNTIME]. Prints
// what its step prints, and ends with the code of the first call that fails.

const fs = require('node:fs');
const { spawnSync } = require('node:child_process');

const [program, layout, runtime = 'runc'] = process.argv.slice(2);
const home = process.env.HOME;
const work = `${home}/_work`;
const temp = `${work}/_temp`;
for (const directory of ['_temp/_runner_hook_responses', '_actions', '_tool', 'repo/repo']) {
  fs.mkdirSync(`${work}/${directory}`, { recursive: true });
}
fs.mkdirSync(`${home}/.config/oci-hooks`, { recursive: true });
fs.writeFileSync(
  `${home}/.config/oci-hooks/container-hook.toml`,
  `[runtime]\norder = ["${runtime}"]\n[store]\npull = "never"\n`,
);
const env = {
  HOME: home,
  PATH: process.env.PATH,
  RUNNER_NAME: 'runner',
  RUNNER_TEMP: temp,
  RUNNER_WORKSPACE: `${work}/repo`,
  GITHUB_WORKSPACE: `${work}/repo/repo`,
};

function run(args, input) {
  const { status } = spawnSync(program, args, { env, input, stdio: ['pipe', 'inherit', 'inherit'] });
  if (status !== 0) {
    process.exit(status ?? 1);
  }
}

let state = null;

function call(command, args) {
  const responseFile = `${temp}/_runner_hook_responses/${command}.json`;
  fs.writeFileSync(responseFile, '');
  run([], JSON.stringify({ command, responseFile, args, state }));
  const response = fs.readFileSync(responseFile, 'utf8');
  if (response !== '') {
    state = JSON.parse(response).state;
  }
}

run(['import', layout, 'local/image:1', '--format', 'json']);
call('prepare_job', {
  container: {
    image: 'local/image:1',
    dockerfile: null,
    entryPointArgs: [],
    entryPoint: null,
    workingDirectory: '/__w/repo/repo',
    createOptions: null,
    registry: null,
    environmentVariables: {},
    portMappings: [],
    systemMountVolumes: [
      { userProvidedValue: null, sourceVolumePath: work, targetVolumePath: '/__w', readOnly: false },
    ],
    userMountVolumes: [],
  },
  services: [],
});
fs.writeFileSync(`${temp}/step.sh`, `echo user $(id -u) of $(awk '{ ids += $3 } END { print ids }' /proc/self/uid_map); touch made`);
call('run_script_step', {
  entryPointArgs: ['-e', '/__w/_temp/step.sh'],
  entryPoint: 'sh',
  environmentVariables: {},
  prependPath: [],
  workingDirectory: '/__w/repo/repo',
});
call('cleanup_job', {});
fs.rmSync(`${work}/repo/repo/made`);
console.log('a whole job');
