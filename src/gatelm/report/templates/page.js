(function () {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const specs = read("specs");
  const config = read("config");
  const root = document.documentElement;
  const views = new Map();
  const actions = { export: true, source: false, compiled: false, editor: false };

  function draw(place) {
    const name = place.dataset.chart;
    const options = { mode: "vega-lite", renderer: "svg", config, actions, downloadFileName: name };
    return vegaEmbed(place, specs[name], options).then(
      (result) => views.set(place, result.view),
      (error) => {
        place.classList.add("failed");
        place.textContent = "This chart could not be drawn: " + error.message;
      }
    );
  }

  function set(select) {
    const value = JSON.parse(select.value);
    for (const place of select.closest(".group").querySelectorAll("[data-chart]")) {
      const view = views.get(place);
      if (view) view.signal(select.dataset.param, value).runAsync();
    }
  }

  const places = Array.from(document.querySelectorAll("[data-chart]"));
  Promise.all(places.map(draw)).then(() => {
    for (const select of document.querySelectorAll("[data-param]")) {
      select.addEventListener("change", () => set(select));
      set(select);
    }
    root.dataset.charts = views.size + "/" + places.length;
  });
})();
