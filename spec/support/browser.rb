# frozen_string_literal: true

require "json"
require "net/http"
require "socket"

# Chromium without a window, driven by WebDriver's protocol, which chromedriver speaks.
class Browser
  ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

  # @return [Boolean] whether the machine has a browser and its driver
  def self.there?
    %w[chromedriver chromium].all? do |name|
      ENV.fetch("PATH").split(File::PATH_SEPARATOR).any? { |folder| File.executable?(File.join(folder, name)) }
    end
  end

  # @yieldparam browser [Browser]
  # @param more [Array<String>] further arguments of Chromium
  def self.open(width:, height:, dark: false, more: [])
    port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
    pid = Process.spawn("chromedriver", "--port=#{port}", out: File::NULL, err: File::NULL)
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--window-size=#{width},#{height}", *("--force-dark-mode" if dark), *more]
    # No window is as narrow as a phone.
    phone = { deviceMetrics: { width: width, height: height, pixelRatio: 2, touch: true } } if width < 500
    browser = new(port, { args: arguments, mobileEmulation: phone }.compact)
    yield browser
  ensure
    browser&.quit
    Process.kill("TERM", pid)
    Process.wait(pid)
  end

  def initialize(port, options)
    @base = "http://127.0.0.1:#{port}"
    wait(10) { Net::HTTP.get_response(URI("#{@base}/status")).is_a?(Net::HTTPSuccess) }
    logs = { browser: "ALL" }
    found = call("POST", "/session", capabilities: { alwaysMatch: { "goog:chromeOptions" => options,
                                                                    "goog:loggingPrefs" => logs } })
    @session = "/session/#{found.fetch("sessionId")}"
  end

  def visit(url) = call("POST", "#{@session}/url", url: url)
  def script(code) = call("POST", "#{@session}/execute/sync", script: code, args: [])
  def text(selector) = script("return document.querySelector(#{selector.to_json}).textContent")
  def click(selector) = call("POST", "#{@session}/element/#{find(selector)}/click")
  def type(selector, keys) = call("POST", "#{@session}/element/#{find(selector)}/value", text: keys)
  def screenshot = call("GET", "#{@session}/screenshot").unpack1("m")
  def reload = call("POST", "#{@session}/refresh")
  def console = call("POST", "#{@session}/se/log", type: "browser")
  def quit = call("DELETE", @session)

  # Waits until the block is true.
  def wait(seconds = 15, &block)
    stop = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    loop do
      return if reached?(&block)
      raise "nothing came in #{seconds} s" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > stop

      sleep 0.05
    end
  end

  private

  # A driver that has not begun to listen is not there yet.
  def reached?
    yield
  rescue Errno::ECONNREFUSED
    false
  end

  def find(selector)
    call("POST", "#{@session}/element", using: "css selector", value: selector).fetch(ELEMENT)
  end

  def call(verb, path, **body)
    address = URI(@base + path)
    answer = Net::HTTP.start(address.host, address.port, read_timeout: 60) do |http|
      next http.send_request(verb, path) unless verb == "POST"

      http.post(path, JSON.generate(body), "content-type" => "application/json")
    end
    value = JSON.parse(answer.body)["value"]
    raise value["message"] unless answer.is_a?(Net::HTTPSuccess)

    value
  end
end
