'use strict';

// Plays GitHub's runner in its own pod: runs the hook of `ACTIONS_RUNNER_CONTAINER_HOOKS` with the runner's
// Node.js, and prints the results as one JSON document.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');

const HOME = '/home/runner';
const WORK = `${HOME}/_work`;
const TEMP = `${WORK}/_temp`;
const WORKSPACE = `${WORK}/repo/repo`;
const COMMANDS = `${TEMP}/_runner_file_commands`;

const environment = {
  ...process.env,
  RUNNER_NAME: process.env.ACTIONS_RUNNER_POD_NAME,
  RUNNER_TEMP: TEMP,
  RUNNER_WORKSPACE: `${WORK}/repo`,
  GITHUB_WORKSPACE: WORKSPACE,
  GITHUB_REPOSITORY: 'octo/repo',
};

function mount(source, target, readOnly = false) {
  return { userProvidedValue: null, sourceVolumePath: source, targetVolumePath: target, readOnly };
}

const files = [
  mount(`${TEMP}/_github_home`, '/github/home'),
  mount(`${TEMP}/_github_workflow`, '/github/workflow'),
];

function container(image, more) {
  return {
    image, dockerfile: null, entryPointArgs: [], entryPoint: null, workingDirectory: null,
    createOptions: null, registry: null, environmentVariables: {}, portMappings: [],
    systemMountVolumes: files, userMountVolumes: [], ...more,
  };
}

function call(command, args, state) {
  const responseFile = `${TEMP}/_runner_hook_responses/${command}.json`;
  fs.writeFileSync(responseFile, '');
  const input = JSON.stringify({ command, responseFile, args, state });
  const hook = process.env.ACTIONS_RUNNER_CONTAINER_HOOKS;
  const node = `${HOME}/externals/node20/bin/node`;
  const ended = spawnSync(node, [hook], { input, env: environment, encoding: 'utf8' });
  const response = fs.readFileSync(responseFile, 'utf8');
  return {
    code: ended.status, signal: ended.signal, stdout: ended.stdout, stderr: ended.stderr,
    response: response === '' ? null : JSON.parse(response),
  };
}

function read(path) {
  try {
    return fs.readFileSync(path, 'utf8');
  } catch (error) {
    return error.code;
  }
}

const directories = ['_actions', '_tool', '_temp/_github_home', '_temp/_github_workflow',
  '_temp/_runner_hook_responses', 'repo/repo'];
for (const directory of directories) {
  fs.mkdirSync(`${WORK}/${directory}`, { recursive: true });
}
fs.writeFileSync(`${WORKSPACE}/given`, 'by the runner\n');
fs.writeFileSync(`${WORKSPACE}/action.sh`, 'cat made; echo by the action >acted; exit 3\n');
fs.writeFileSync(`${TEMP}/step.sh`, `
cat given
echo by the step >made
echo "answer=42" >>"$GITHUB_OUTPUT"
exit 7
`);

const doctor = spawnSync('container-hook', ['doctor'], { env: environment, encoding: 'utf8' });
const report = { user: `${process.getuid()}:${process.getgid()}`, doctor: doctor.stdout };
const job = container('node:22', {
  workingDirectory: '/__w/repo/repo',
  systemMountVolumes: [mount(WORK, '/__w'), mount(`${HOME}/externals`, '/__e', true), ...files],
});
report.prepare = call('prepare_job', { container: job, services: [] }, null);
const state = report.prepare.response && report.prepare.response.state;
if (report.prepare.code === 0) {
  // The runner creates it for the first step.
  fs.mkdirSync(COMMANDS, { recursive: true });
  fs.writeFileSync(`${COMMANDS}/set_output_1`, '');
  report.script = call('run_script_step', {
    entryPoint: 'sh', entryPointArgs: ['-e', '/__w/_temp/step.sh'],
    environmentVariables: { GITHUB_OUTPUT: '/__w/_temp/_runner_file_commands/set_output_1' },
    prependPath: [], workingDirectory: '/__w/repo/repo',
  }, state);
  report.made = read(`${WORKSPACE}/made`);
  report.output = read(`${COMMANDS}/set_output_1`);
  report.container = call('run_container_step', container('alpine:3.20', {
    entryPoint: 'sh', entryPointArgs: ['/github/workspace/action.sh'],
    workingDirectory: '/github/workspace',
    systemMountVolumes: [mount(WORKSPACE, '/github/workspace'), mount(TEMP, '/github/runner_temp'),
      mount(COMMANDS, '/github/file_commands'), ...files],
  }), state);
  report.acted = read(`${WORKSPACE}/acted`);
}
report.cleanup = call('cleanup_job', {}, state);
console.log(JSON.stringify(report));
