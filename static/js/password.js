// Passwords, where one is given or chosen.
//   data-reveal="id"    a button that shows what is typed in that field, and hides it again
//   data-strength="id"  says how long the password in that field would hold; zxcvbn judges it, here
//                       in the browser alone, and the server has the last word
(() => {
  "use strict";
  const WORDS = ["very weak", "weak", "weak", "fair", "strong"];

  for (const button of document.querySelectorAll("[data-reveal]")) {
    const field = document.getElementById(button.dataset.reveal);
    const show = (shown) => {
      field.type = shown ? "text" : "password";
      button.setAttribute("aria-pressed", shown);
      button.textContent = shown ? "Hide" : "Show";
    };
    button.hidden = false;
    button.addEventListener("click", () => show(field.type === "password"));
    // What a browser sends, and offers to keep, is a password again.
    field.form.addEventListener("submit", () => show(false));
  }

  for (const box of document.querySelectorAll("[data-strength]")) {
    const field = document.getElementById(box.dataset.strength);
    const meter = box.querySelector("meter");
    const words = box.querySelector("[role=status]");
    const about = (box.dataset.about || "").split(" ").filter(Boolean);
    let waiting = 0;
    const judge = () => {
      box.hidden = !field.value;
      if (!field.value) return;
      // Longer ones take it long, and are no weaker.
      const { score, feedback, crack_times_display: holds } = zxcvbn(field.value.slice(0, 100), about);
      meter.value = score + 1;
      const advice = [feedback.warning, ...feedback.suggestions].filter(Boolean).map((text) => text.replace(/\.?$/, "."));
      const time = holds.offline_slow_hashing_1e4_per_second;
      words.textContent = [`This password is ${WORDS[score]}: who stole the database finds it in ${time}, at 10,000 guesses a second.`, ...advice].join(" ");
    };
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(judge, 250); // so that each letter is not read out
    });
  }
})();
