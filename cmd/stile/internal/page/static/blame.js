export const blameView = { show() {}, hide() {}, update() {} };
