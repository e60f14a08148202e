// Sends the upload form in the background: drag and drop, a progress bar, errors in words.
// Without scripts the same form posts as usual.
(() => {
  "use strict";
  document.addEventListener("DOMContentLoaded", () => {
    const form = document.querySelector("[data-upload]");
    if (!form) return;
    const part = (name) => form.querySelector(`[data-upload-${name}]`);
    const [drop, problem, bar, send] = ["drop", "problem", "bar", "send"].map(part);
    const input = form.querySelector("input[type=file]");

    const name = () => {
      if (input.files.length) part("name").textContent = input.files[0].name;
    };
    for (const type of ["dragover", "dragleave", "drop"]) {
      drop.addEventListener(type, (event) => {
        event.preventDefault();
        drop.classList.toggle("over", type === "dragover");
        if (type === "drop" && event.dataTransfer.files.length) input.files = event.dataTransfer.files;
        name();
      });
    }
    input.addEventListener("change", name);

    const refuse = (words) => {
      problem.firstElementChild.innerText = words;
      problem.classList.remove("d-none");
      part("progress").classList.add("d-none");
      send.disabled = false;
      problem.scrollIntoView({ block: "nearest" });
    };

    const show = (loaded, total) => {
      const share = Math.floor((100 * loaded) / total);
      bar.style.width = `${share}%`;
      bar.parentElement.setAttribute("aria-valuenow", share);
      part("share").textContent = `${share} %`;
      part("words").textContent = share < 100 ? "Sending" : "Sent; the server keeps it";
    };

    const answered = (request) => {
      let said = {};
      try {
        said = JSON.parse(request.responseText);
      } catch {
        // not ours: a proxy's page, or a login
      }
      if (said.url) window.location.assign(said.url);
      else if (said.problem) refuse(said.problem);
      else if (said.detail) refuse(said.detail);
      else if (request.status === 413) refuse("The file is larger than this server takes; compress it or split it.");
      else if (request.status === 403) refuse("You may not upload, or your sign-in is over; load the page again.");
      else refuse(`The server did not take the file (${request.status}); try again.`);
    };

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const request = new XMLHttpRequest();
      request.open("POST", form.action);
      request.setRequestHeader("Accept", "application/json");
      request.setRequestHeader("X-CSRFToken", form.elements.csrfmiddlewaretoken.value);
      request.upload.addEventListener("progress", (now) => show(now.loaded, now.total || 1));
      request.addEventListener("load", () => answered(request));
      request.addEventListener("error", () => refuse("The connection broke before the file was sent; try again."));
      problem.classList.add("d-none");
      part("progress").classList.remove("d-none");
      send.disabled = true;
      request.send(new FormData(form));
    });
  });
})();
